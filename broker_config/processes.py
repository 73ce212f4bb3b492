"""Knowing a process again, and locking between processes.

A process is known by its id *and* its start time, so that an id that the system gave to somebody else is never signalled.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_config.deadline import Deadline


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process: its id, and when it started (boot of the machine and clock ticks since)."""

    pid: int
    started: str

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """The living process with this id; None if there is none. One that has ended but is not yet reaped does not live."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The name in parentheses may itself hold spaces and parentheses; the fields start behind the last one.
        fields = stat.rpartition(")")[2].split()
        state, start_ticks = fields[0], fields[19]
        return None if state in "ZX" else ProcessId(pid, f"{boot}/{start_ticks}")

    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def send(self, signum: signal.Signals) -> bool:
        """Signal this very process; False if it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The handle pins whoever holds the id now; only then is the identity looked at.
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, signum)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)


@contextmanager
def file_lock(path: Path, deadline: Deadline, what: str) -> Iterator[None]:
    """Hold `path` alone among all processes. The system frees it when its holder dies.

    Raises:
        DeadlineExceeded: somebody else held it until the deadline; the message names `what` is being waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                deadline.check(f"{what} (another process holds {path})")
                time.sleep(min(0.05, deadline.remaining()))
        yield
