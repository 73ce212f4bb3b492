"""Producers that may get work of one version, given out the best first: those with the most room for their speed."""

from __future__ import annotations

import heapq
from collections.abc import Container

from learner.dispatcher.state.producer import Producer

SLOWEST_SHARE = 0.05  # of the fastest producer's speed: a slower one is not made worse than this, or it would never be measured

Item = tuple[float, int, str, Producer]


class Candidates:
    """`full`: producers that may take one request over their capacity, when nobody has room; None if that is not wanted."""

    def __init__(self, able: list[Producer], full: list[Producer] | None) -> None:
        everybody = (*able, *(full or ()))
        self._fastest = max((p.tokens_per_beat for p in everybody), default=0.0)
        self._able = [self._item(p) for p in able]
        self._full = None if full is None else [self._item(p) for p in full]
        heapq.heapify(self._able)
        heapq.heapify(self._full or [])

    def best(self, exclude: Container[str] = ()) -> Producer | None:
        """The one that should get the next request; it stays a candidate while it has room."""
        found = self._next(self._able, 1, exclude)
        if found is None and self._full is not None:
            found = self._next(self._full, 0, exclude)
        return found

    def _next(self, heap: list[Item], room: int, exclude: Container[str]) -> Producer | None:
        """The best of `heap` that has at least `room`. Entries are as old as the producer's last request: renewed here."""
        excluded: list[Item] = []
        found = None
        while heap and found is None:
            item = heapq.heappop(heap)
            producer = item[-1]
            if producer.free < room:
                if room == 1 and producer.free == 0 and self._full is not None:
                    heapq.heappush(self._full, self._item(producer))
            elif item[0] != self._load(producer):
                heapq.heappush(heap, self._item(producer))
            else:
                excluded.append(item)
                found = None if producer.name in exclude else producer
        for item in excluded:
            heapq.heappush(heap, item)
        return found

    def _item(self, p: Producer) -> Item:
        return self._load(p), -p.held, p.name, p

    def _load(self, p: Producer) -> float:
        speed = p.tokens_per_beat / self._fastest if self._fastest > 0 and p.tokens_per_beat > 0 else 1.0
        return (len(p.assigned) + 1) / max(speed, SLOWEST_SHARE) / p.capacity
