"""The producers of a run, as their status records and the members of the control state show them. Pure; times are seconds since
the epoch. A producer that is no member and was not heard for `FORGET_S` is left out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.records.control import Member
from schemas.records.status import Heartbeat, Report

RATE_WINDOW_S = 10.0
FORGET_S = 120.0


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """One producer. `version`: of the weights that it serves, -1 before the first; `silent_s`: seconds since its last record."""

    name: str
    state: str
    """As the producer reports it; `draining` for one that gets no new work, `silent` for one that was not heard yet."""
    version: int
    in_hand: int
    capacity: int
    tokens_per_s: float
    silent_s: float
    member: bool = False
    """Whether the learner gives it work."""
    rollouts: dict[int, int] = field(default_factory=dict)
    """Rollouts in hand by target version."""
    validations: int = 0
    """Validations in hand."""


class _ObservedProducer:
    """Latest facts of one producer, and its token counts of the last seconds."""

    def __init__(self) -> None:
        self.state = "silent"
        self.version = -1
        self.in_hand = 0
        self.rollouts: dict[int, int] = {}
        self.capacity = 0
        self.at = 0.0
        self.tokens: deque[tuple[float, int]] = deque(maxlen=64)

    def rate(self, now: float) -> float:
        recent = [(at, count) for at, count in self.tokens if at >= now - RATE_WINDOW_S]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return 0.0
        return max(0.0, (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0]))

    def row(self, name: str, member: Member | None, now: float) -> ProducerRow:
        draining = member is not None and member.draining and self.state in ("serving", "paused")
        return ProducerRow(
            name=name,
            state="draining" if draining else self.state,
            version=self.version,
            in_hand=self.in_hand,
            capacity=self.capacity,
            tokens_per_s=self.rate(now),
            silent_s=max(0.0, now - self.at) if self.at else 0.0,
            member=member is not None,
            rollouts=dict(self.rollouts),
            validations=self.in_hand - sum(self.rollouts.values()),
        )


class ProducersView:
    """Feed it the records in the order of their topics."""

    def __init__(self) -> None:
        self._known: dict[str, _ObservedProducer] = {}
        self._members: Mapping[str, Member] = {}

    def members(self, members: Mapping[str, Member]) -> None:
        """The members of the newest control state."""
        self._members = members
        for name, member in members.items():
            self._known.setdefault(name, _ObservedProducer()).version = member.held

    def reported(self, record: Report | Heartbeat, at: float) -> None:
        """What a producer reports about itself."""
        if record.producer not in self._known:
            self._forget(at)
        producer = self._known.setdefault(record.producer, _ObservedProducer())
        producer.state, producer.version = str(record.state), record.held
        producer.in_hand, producer.capacity, producer.at = len(record.in_hand), record.capacity, at
        producer.rollouts = dict(sorted(Counter(item.target for item in record.in_hand if item.kind == "rollout").items()))
        if isinstance(record, Heartbeat):
            producer.tokens.append((at, record.engine_tokens))

    def heard(self, name: str, at: float) -> None:
        """Any other record of a producer."""
        if name in self._known:
            self._known[name].at = max(self._known[name].at, at)

    def left(self, name: str) -> None:
        self._known.pop(name, None)

    def rows(self, now: float, *, ended: bool) -> list[ProducerRow]:
        """By name. `ended`: the run is over, and only producers that were heard are shown."""
        found = []
        for name, producer in sorted(self._known.items()):
            member = self._members.get(name)
            lost = member is None and producer.at < now - FORGET_S
            if (producer.at or not ended) and not lost:
                found.append(producer.row(name, member, now))
        return found

    def _forget(self, at: float) -> None:
        gone = [name for name, known in self._known.items() if name not in self._members and known.at < at - FORGET_S]
        for name in gone:
            del self._known[name]
