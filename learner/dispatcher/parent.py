"""Whether rank 0 still runs. A process that was stopped (SIGSTOP, a debugger, a container's pause) closes no socket."""

from __future__ import annotations

import os
import signal
import time

import psutil

from schemas.errors import WeirError

LOOK_S = 1.0


class Parent:
    """`check` it in every turn.

    When the parent has stood still for `limit_s`, it is killed, since it cannot end by itself and holds up every other rank.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._process = psutil.Process(os.getppid())
        self._stopped_since: float | None = None
        self._looked = 0.0

    def check(self) -> None:
        """
        Raises:
            WeirError: rank 0 stood still for too long, and was killed.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        try:
            stopped = self._process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.NoSuchProcess:
            return  # the link tells
        if not stopped:
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since > self._limit_s:
            self._process.send_signal(signal.SIGKILL)
            raise WeirError(
                f"rank 0 (pid {self._process.pid}) was stopped for {self._limit_s:g} s (learner.rank_timeout_s); killed it"
            )
