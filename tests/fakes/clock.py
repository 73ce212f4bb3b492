"""A clock that a test moves by hand; whoever sleeps by it moves it too."""

from __future__ import annotations


class Clock:
    """`Deadline(30, clock, clock.sleep)` takes no time, and `slept` shows every pause."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
