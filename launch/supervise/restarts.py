"""How often a process that dies is started again, and after which pause. Pure; times are seconds on any one clock."""

from __future__ import annotations

import math

from schemas.config.launch import RestartConfig


class Deaths:
    """Deaths of one process. The pause doubles with each death that counts, from `backoff_s` up to `max_backoff_s`.

    Args:
        limit: the number of deaths that are followed by a start; the next one is not.
        window_s: how long a death counts; infinite: until `forget`.
    """

    def __init__(self, limit: int, pauses: RestartConfig, window_s: float = math.inf) -> None:
        self._limit, self._window_s = limit, window_s
        self._first_s, self._longest_s = pauses.backoff_s, pauses.max_backoff_s
        self._at: list[float] = []

    def died(self, now: float) -> float | None:
        """Seconds until the process is started again; None if it has died too often for that."""
        self._at = [at for at in self._at if now - at < self._window_s]
        if len(self._at) >= self._limit:
            return None
        self._at.append(now)
        return min(self._longest_s, self._first_s * 2.0 ** min(len(self._at) - 1, 60))

    def forget(self) -> None:
        """The process is doing well: earlier deaths no longer count."""
        self._at.clear()
