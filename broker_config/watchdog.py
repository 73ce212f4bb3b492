"""Stacks of all threads on standard error when a process's main loop stands still, or when a person asks by SIGUSR1."""

from __future__ import annotations

import faulthandler
import signal
import time

KICK_S = 1.0  # arming costs a thread of its own each time


class Watchdog:
    """`kick` it in every turn of the loop; after `limit_s` without one the stacks are written, once, and the process goes on.

    The timer is a thread in C, so it also works when a call never gives the interpreter back.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._kicked = 0.0
        faulthandler.register(signal.SIGUSR1, file=2)

    def kick(self) -> None:
        now = time.monotonic()
        if now - self._kicked >= KICK_S:
            self._kicked = now
            faulthandler.dump_traceback_later(self._limit_s, file=2)

    def stop(self) -> None:
        faulthandler.cancel_dump_traceback_later()
