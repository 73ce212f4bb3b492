"""Stacks of all threads on standard error: when a process's main loop stands still, or on SIGUSR1."""

from __future__ import annotations

import faulthandler
import signal
import time
from collections.abc import Callable
from typing import Protocol

KICK_S = 1.0  # each arming costs a thread
STDERR = 2


class StackDumper(Protocol):
    """The part of `faulthandler` that a watchdog needs."""

    def register(self, signum: int, file: int) -> None: ...

    def dump_traceback_later(self, timeout: float, *, file: int) -> None:
        """Replaces an earlier timer."""

    def cancel_dump_traceback_later(self) -> None: ...


class Watchdog:
    """`kick` it in every turn of the loop; `limit_s` after the last kick the stacks are written, once, and the process continues.

    The timer is a thread in C, so it also works while a call holds the interpreter.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic, stacks: StackDumper = faulthandler) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._stacks = stacks
        self._armed_at: float | None = None
        stacks.register(signal.SIGUSR1, file=STDERR)

    def kick(self) -> None:
        now = self._clock()
        if self._armed_at is None or now - self._armed_at >= KICK_S:
            self._armed_at = now
            self._stacks.dump_traceback_later(self._limit_s, file=STDERR)

    def stop(self) -> None:
        self._stacks.cancel_dump_traceback_later()
