"""One budget of time, shared by all steps of a wait.

A `Deadline` always ends: "wait for ever" cannot be expressed. The clock and the sleep are passed in, so that a test can move time
by hand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from schemas.errors import DeadlineExceeded


class Deadline:
    """A fixed moment on a monotonic clock, `seconds` after construction.

    Raises:
        ValueError: `seconds` is negative, infinite or not a number.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"a deadline needs a finite number of seconds >= 0, not {seconds!r}")
        self.seconds = float(seconds)
        self._clock = clock
        self._sleep = sleep
        self._end = clock() + self.seconds

    def remaining(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._end - self._clock())

    @property
    def expired(self) -> bool:
        return self._clock() >= self._end

    def exceeded(self, what: str) -> DeadlineExceeded:
        """The error to raise when the time is over; it says that `what` was waited for, and how long."""
        return DeadlineExceeded(f"waited {self.seconds:g} s for {what}")

    def check(self, what: str) -> None:
        """Raise `exceeded` if the time is over."""
        if self.expired:
            raise self.exceeded(what)

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, but not past the end."""
        self._sleep(min(seconds, self.remaining()))

    def at_most(self, seconds: float) -> Deadline:
        """A deadline for one step of this wait: `seconds` from now or the end of the whole wait, whichever comes first."""
        return Deadline(min(seconds, self.remaining()), self._clock, self._sleep)

    def __repr__(self) -> str:
        return f"Deadline({self.remaining():.3f} of {self.seconds:g} s left)"


def wait_until(condition: Callable[[], bool], deadline: Deadline, what: str, interval_s: float = 0.05) -> None:
    """Check `condition` every `interval_s` seconds until it holds; at least once.

    Raises:
        DeadlineExceeded: it did not hold in time; the message names `what`.
    """
    while not condition():
        deadline.check(what)
        deadline.pause(interval_s)
