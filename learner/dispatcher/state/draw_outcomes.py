"""How the last draws ended, for the judgement that something fails on everything."""

from __future__ import annotations

from collections import Counter, deque


class DrawOutcomes:
    """The newest `size` draws: accepted, or given up with a reason. Counting costs nothing however many there are."""

    def __init__(self, size: int) -> None:
        self._reasons: deque[str | None] = deque()
        self._size = size
        self._failed: Counter[str] = Counter()
        self.failed = 0

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, reason: str | None) -> None:
        """The end of a draw; `reason` is None when its group was accepted."""
        self._reasons.append(reason)
        if reason is not None:
            self.failed += 1
            self._failed[reason] += 1
        if len(self._reasons) > self._size:
            old = self._reasons.popleft()
            if old is not None:
                self.failed -= 1
                self._failed[old] -= 1
                if not self._failed[old]:
                    del self._failed[old]

    def commonest(self) -> tuple[str, int]:
        """The commonest reason and how often it came."""
        return self._failed.most_common(1)[0]
