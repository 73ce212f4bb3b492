"""Signals as events. A handler only notes the signal and wakes the loop."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from launch.supervise.events import Event, Interrupted

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalInbox:
    """Must be used by the main thread: only that one may set signal handlers."""

    def __init__(self) -> None:
        self._noted: deque[str] = deque()
        self._wake = threading.Event()

    @contextmanager
    def listening(self) -> Iterator[None]:
        former = {number: signal.signal(number, self._note) for number in INTERRUPTS}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def take(self) -> list[Event]:
        found: list[Event] = []
        while self._noted:
            found.append(Interrupted(self._noted.popleft()))
        return found

    def wait(self, seconds: float) -> None:
        """Until a signal comes, for at most so long."""
        self._wake.wait(seconds)
        self._wake.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append(signal.Signals(number).name)
        self._wake.set()
