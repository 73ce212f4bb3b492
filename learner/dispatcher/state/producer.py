"""One producer as the dispatcher knows it from the producer's own records."""

from __future__ import annotations

from dataclasses import dataclass, field

from learner.dispatcher.state.members import Members
from learner.dispatcher.state.slots import Kind
from schemas.identity import Attempt
from schemas.records.control import Member
from schemas.records.status import Heartbeat, ProducerState

RATE_SMOOTHING = 0.3  # weight of the newest heartbeat in a producer's token rate
QUIET_BEATS = 3  # a producer that is silent for longer generates nothing that we know of

Work = tuple[Kind, Attempt]


@dataclass(slots=True)
class Producer:
    """Invariant: `held` is what the producer last acknowledged, never what it was sent.

    Its published part stands in `members`.
    """

    name: str
    members: Members
    world_size: int
    """Ranks of its engine."""
    capacity: int
    state: ProducerState = ProducerState.JOINING
    last_beat: int = 0
    joined_beat: int = 0
    failed_rounds: int = 0
    """Rounds that failed at it since its last good one."""
    suspect: bool = False
    """A request of it stalled, and nothing has moved there since: its engine may hang while its heartbeats continue."""
    engine_tokens: int | None = None
    """The engine's total in the last heartbeat."""
    tokens_per_beat: float = 0.0
    measured: int = 0
    """Heartbeats that went into the rate."""
    refusals: int = 0
    """Records of it that were refused, since its last good one."""
    assigned: set[Work] = field(default_factory=set)
    tokens_of: dict[Work, int] = field(default_factory=dict)
    progress_beat: dict[Work, int] = field(default_factory=dict)

    @property
    def member(self) -> Member:
        return self.members[self.name]

    @property
    def held(self) -> int:
        return self.member.held

    @property
    def draining(self) -> bool:
        return self.member.draining

    @property
    def free(self) -> int:
        return self.capacity - len(self.assigned)

    def holds(self, version: int | None, digest: str | None) -> bool:
        member = self.member
        return version is not None and member.held == version and member.digest == digest

    def rate(self, beat: int) -> float:
        """Tokens a beat, as far as is known; less the longer it is silent."""
        silent = beat - self.last_beat
        return self.tokens_per_beat * (1.0 if silent <= QUIET_BEATS else QUIET_BEATS / silent)

    def may_serve(self, version: int, max_age: int, *, exact: bool) -> bool:
        """Whether its weights and its state allow work of target `version`."""
        member = self.member
        if member.draining or self.state is ProducerState.LEAVING or member.held < 0:
            return False
        return member.held == version if exact else version - max_age <= member.held <= version

    def stalled(self, beat: int, limit: int) -> list[Work]:
        """Requests in hand that made no progress for `limit` beats."""
        return [work for work in self.assigned if beat - self.progress_beat[work] >= limit]

    def heard(self, record: Heartbeat, beat: int) -> None:
        """Fold in a heartbeat, except for the capacity, by which the roster sorts its producers."""
        if self.engine_tokens is not None:  # the first total may be of a long life before it joined
            self._measure(record, beat)
        self.engine_tokens = record.engine_tokens
        self.last_beat = beat
        self.state = record.state
        for item in record.in_hand:
            work: Work = (item.kind, item.key)
            if work in self.assigned and item.tokens > self.tokens_of.get(work, -1):
                self.tokens_of[work] = item.tokens
                self.progress_beat[work] = beat

    def _measure(self, record: Heartbeat, beat: int) -> None:
        generated = max(0, record.engine_tokens - (self.engine_tokens or 0))
        self.suspect = self.suspect and generated == 0
        paused = ProducerState.PAUSED in (self.state, record.state)
        if (self.assigned or generated) and not paused:  # having nothing to do, or standing still by order, is not being slow
            rate = generated / max(1, beat - self.last_beat)
            self.tokens_per_beat += RATE_SMOOTHING * (rate - self.tokens_per_beat)
            self.measured += 1
