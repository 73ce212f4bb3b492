"""Whether the broker of a run is away, since when and why. Pure; times are seconds on any one clock."""

from __future__ import annotations

import math

LINE_S = 30.0


class Outage:
    """Outages of one broker; each may last `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: float | None = None
        self._ended = -math.inf
        self._line_at = 0.0
        self.why = ""

    @property
    def away(self) -> bool:
        return self._since is not None

    @property
    def limit(self) -> str:
        return f"{self._limit_s:g} s (kafka.outage_timeout_s)"

    def touches(self, at: float) -> bool:
        """Whether the broker is away now, or was at some time after `at`."""
        return self.away or self._ended >= at

    def begin(self, why: str, now: float) -> bool:
        """The broker is away; returns whether that is new."""
        new = self._since is None
        if self._since is None:
            self._since, self._line_at = now, now + LINE_S
        self.why = why
        return new

    def end(self, now: float) -> float:
        """The broker is back; returns for how many seconds it was away."""
        seconds = 0.0 if self._since is None else now - self._since
        self._since, self._ended = None, now
        return seconds

    def too_long(self, now: float) -> bool:
        return self._since is not None and now - self._since >= self._limit_s

    def line(self, now: float) -> str | None:
        """A reminder, every `LINE_S` while an outage lasts."""
        if self._since is None or now < self._line_at:
            return None
        self._line_at = now + LINE_S
        return f"the broker has been away for {now - self._since:.0f} s of at most {self._limit_s:g} s: {self.why}"
