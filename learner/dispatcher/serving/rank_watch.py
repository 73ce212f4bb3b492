"""Whether the ranks of this host still run. One that was stopped (SIGSTOP, a debugger, a container's pause) closes no socket."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import psutil

from schemas.errors import WeirError

log = logging.getLogger(__name__)

LOOK_S = 1.0
SHARE = 0.75  # of `learner.rank_timeout_s`: before the other ranks give up, since they could not say whose fault it was


class RankWatch:
    """Checks in its own thread, since the dispatcher's may be blocked by the very process that stands still."""

    def __init__(self, ranks: HostRanks, failed: Callable[[BaseException], None]) -> None:
        self._ranks = ranks
        self._failed = failed
        self._over = threading.Event()
        threading.Thread(target=self._run, name="rank-watch", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._ranks.period_s):
                self._ranks.check()
        except WeirError as error:
            self._failed(error)


class HostRanks:
    """`check` it every `period_s`.

    When rank 0 or another rank of this host has stood still for too long it is killed: it cannot end by itself and holds up every
    other rank, in the middle of a collective for minutes. The end of a process is noticed by the others at once.
    """

    def __init__(self, rank_timeout_s: float) -> None:
        self._limit_s = SHARE * rank_timeout_s
        self.period_s = min(LOOK_S, self._limit_s / 10)
        self._rank0 = psutil.Process(os.getppid())
        self._others: list[psutil.Process] = []
        self._stopped_since: dict[int, float] = {}

    def check(self) -> None:
        """
        Raises:
            WeirError: rank 0 stood still for too long, and was killed.
        """
        now = time.monotonic()
        if self._stands_still(self._rank0, now):
            raise WeirError(self._kill("rank 0", self._rank0))
        self._find_others()
        for process in self._others:
            if self._stands_still(process, now):
                self._kill("a rank", process)

    def _stands_still(self, process: psutil.Process, now: float) -> bool:
        """Whether it has been stopped for longer than the limit."""
        try:
            stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.NoSuchProcess:
            stopped = False  # the link and torchrun notice it
        if not stopped:
            self._stopped_since.pop(process.pid, None)
            return False
        return now - self._stopped_since.setdefault(process.pid, now) > self._limit_s

    def _kill(self, who: str, process: psutil.Process) -> str:
        why = f"{who} (pid {process.pid}) was stopped for {self._limit_s:g} s ({SHARE:g} of learner.rank_timeout_s); it is killed"
        # Reported first: this process ends with rank 0.
        log.error("%s", why)
        sys.stderr.write(f"dispatcher: {why}\n")
        sys.stderr.flush()
        process.send_signal(signal.SIGKILL)
        return why

    def _find_others(self) -> None:
        """torchrun starts the same command for each rank, and says how many there are on this host."""
        if len(self._others) + 1 >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
            return
        try:
            torchrun, command = self._rank0.parent(), self._rank0.cmdline()
            siblings = torchrun.children() if torchrun is not None else []
            self._others = [p for p in siblings if p.pid != self._rank0.pid and p.cmdline() == command]
        except psutil.NoSuchProcess:
            return  # one of them is ending; looked for again at the next turn
