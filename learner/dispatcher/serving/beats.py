"""When the next beat is due: a while after the last one was read back, so a broker or a dispatcher that stalls makes none."""

from __future__ import annotations

import time
from collections.abc import Callable

from schemas.errors import BrokerError


class Beats:
    """`number`: of the newest beat. Seconds are the process's own, and only space the beats; everything else counts beats."""

    def __init__(self, period_s: float, outage_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._outage_timeout_s = outage_timeout_s
        self._clock = clock
        self._next: float | None = clock()
        self._sent = 0.0
        self.number = 0

    def due(self) -> bool:
        """Whether a beat is to be published now; it counts as published then.

        Raises:
            BrokerError: the last one did not come back for `outage_timeout_s`.
        """
        now = self._clock()
        if self._next is None:
            if now - self._sent > self._outage_timeout_s:
                limit = f"{self._outage_timeout_s:g} s (kafka.outage_timeout_s)"
                raise BrokerError(f"nothing written to status came back from the broker for {limit}; is it up?")
            return False
        if now < self._next:
            return False
        self._sent, self._next = now, None
        self.number += 1
        return True

    def read_back(self) -> None:
        self._next = self._clock() + self._period_s

    def patience(self, longest_s: float) -> float:
        """Seconds until the next one may be due, at most `longest_s`."""
        return longest_s if self._next is None else max(0.0, min(longest_s, self._next - self._clock()))
