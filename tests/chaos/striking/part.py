"""One process of a run that a test starts by hand: its output, its end, the processes under it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import psutil

from tests.fakes.nursery import Forked

END_S = 60.0


class Part:
    """`awaited`: its end was waited for, so it is no surprise."""

    def __init__(self, name: str, process: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.awaited = False

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def frozen(self) -> bool:
        return is_frozen(self.process.pid)

    def send(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def end(self, within_s: float = END_S) -> int:
        """The exit code, once it has ended by itself."""
        self.awaited = True
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {within_s:g} s:\n{self.output[-4000:]}") from None

    def tree(self) -> list[psutil.Process]:
        """It and all processes under it."""
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]

    def kill(self) -> None:
        """Whatever it does, it and all under it are gone afterwards."""
        if self.alive:
            for process in reversed(self.tree()):
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
        self.process.wait(END_S)


def is_frozen(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
