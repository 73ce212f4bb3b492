"""The producers that the dispatcher knows: what each holds, has in hand and can take on.

Invariants: a producer's `held` is what it last acknowledged, never what it was sent; capacity is what it states in all, less
what the dispatcher gave it; time is counted in beats, so a stalled broker or dispatcher makes nobody late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from learner.dispatcher.events import Kind
from schemas.control import Member
from schemas.identity import Attempt
from schemas.status import Heartbeat, ProducerState, Report

RATE_SMOOTHING = 0.3  # weight of the newest heartbeat in a producer's token rate


@dataclass(slots=True)
class Producer:
    """One producer as its own records show it."""

    name: str
    requests_partition: int
    world_size: int
    capacity: int
    held: int = -1
    digest: str | None = None
    state: ProducerState = ProducerState.JOINING
    last_beat: int = 0
    joined_beat: int = 0
    draining: bool = False
    failed_rounds: int = 0
    suspect: bool = False
    """A request of it stalled, and nothing has moved there since: its engine may hang while its heartbeats go on."""
    engine_tokens: int | None = None
    """The engine's total in the last heartbeat."""
    tokens_per_beat: float = 0.0
    assigned: set[tuple[Kind, Attempt]] = field(default_factory=set)
    tokens_of: dict[tuple[Kind, Attempt], int] = field(default_factory=dict)
    progress_beat: dict[tuple[Kind, Attempt], int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.capacity - len(self.assigned)

    def holds(self, version: int | None, digest: str | None) -> bool:
        return version is not None and self.held == version and self.digest == digest

    def stalled(self, beat: int, limit: int) -> list[tuple[Kind, Attempt]]:
        """Requests in hand that made no progress for `limit` beats."""
        return [key for key in self.assigned if beat - self.progress_beat.get(key, beat) >= limit]


class Roster:
    """Known producers by name, and the problems of refused ones."""

    def __init__(self, request_partitions: int) -> None:
        self.request_partitions = request_partitions
        self.producers: dict[str, Producer] = {}
        self.refused: dict[str, list[str]] = {}

    def join(self, report: Report, beat: int) -> Producer:
        """Take in a producer by its report; a known one is refreshed, with nothing in hand.

        A partition that the producer was given, by whichever incarnation, stays its own: it reads no other.
        """
        partition, known = report.requests_partition, self.producers.get(report.producer)
        if partition is None:
            partition = self._emptiest_partition() if known is None else known.requests_partition
        producer = Producer(
            name=report.producer,
            requests_partition=partition,
            world_size=report.engine_world_size,
            capacity=report.capacity,
            held=report.held,
            digest=report.digest,
            state=report.state,
            last_beat=beat,
            joined_beat=beat,
        )
        self.producers[report.producer] = producer
        return producer

    def heartbeat(self, record: Heartbeat, beat: int) -> Producer | None:
        """Fold in a heartbeat. None for a producer that is not in the roster: ignored and counted by the caller."""
        producer = self.producers.get(record.producer)
        if producer is None:
            return None
        if producer.engine_tokens is not None:  # the first total may be of a long life before it joined
            generated = max(0, record.engine_tokens - producer.engine_tokens)
            producer.suspect = producer.suspect and generated == 0
            rate = generated / max(1, beat - producer.last_beat)
            producer.tokens_per_beat += RATE_SMOOTHING * (rate - producer.tokens_per_beat)
        producer.engine_tokens = record.engine_tokens
        producer.last_beat = beat
        producer.state = record.state
        producer.capacity = record.capacity
        for item in record.in_hand:
            key: tuple[Kind, Attempt] = (item.kind, item.key)
            if key in producer.assigned and item.tokens > producer.tokens_of.get(key, -1):
                producer.tokens_of[key] = item.tokens
                producer.progress_beat[key] = beat
        return producer

    def give(self, producer: Producer, kind: Kind, key: Attempt, beat: int) -> None:
        producer.assigned.add((kind, key))
        producer.progress_beat[kind, key] = beat

    def take(self, name: str, kind: Kind, key: Attempt) -> None:
        """The producer has this request no more (published, failed, cancelled)."""
        producer = self.producers.get(name)
        if producer is not None:
            producer.assigned.discard((kind, key))
            producer.tokens_of.pop((kind, key), None)
            producer.progress_beat.pop((kind, key), None)

    def remove(self, name: str) -> Producer | None:
        return self.producers.pop(name, None)

    def lapsed(self, beat: int, lease_beats: int) -> list[Producer]:
        return [p for p in self.producers.values() if beat - p.last_beat > lease_beats]

    def members(self) -> dict[str, Member]:
        return {
            p.name: Member(requests_partition=p.requests_partition, held=p.held, digest=p.digest)
            for p in sorted(self.producers.values(), key=lambda p: p.name)
        }

    def best_for(self, version: int, max_age: int, exclude: Iterable[str], *, exact: bool, urgent: bool) -> Producer | None:
        """The producer that should get work of target `version`, or None.

        It must have acknowledged weights of at least version - max_age (exactly `version` if `exact`) and at most `version`, and
        have room; an `urgent` request may exceed the capacity by one. Among those, the one with the most room for its speed. A
        suspect one gets none while there is another, be that one full: a prompt must not fail for the engine that it was given.
        """
        excluded = set(exclude)
        able = [
            p
            for p in self.producers.values()
            if p.name not in excluded
            and not p.draining
            and p.state is not ProducerState.LEAVING
            and (p.held == version if exact else version - max_age <= p.held <= version)
            and p.held >= 0
        ]
        room = 1 if urgent else 0
        trusted = [p for p in able if not p.suspect] or able
        candidates = [p for p in trusted if p.free + room > 0]
        fastest = max((p.tokens_per_beat for p in candidates), default=0.0)

        def preference(p: Producer) -> tuple[float, int, str]:
            speed = p.tokens_per_beat / fastest if fastest > 0 and p.tokens_per_beat > 0 else 1.0
            return (len(p.assigned) + 1) / max(speed, 0.05) / p.capacity, -p.held, p.name

        return min(candidates, key=preference, default=None)

    def _emptiest_partition(self) -> int:
        load = [0] * self.request_partitions
        for p in self.producers.values():
            load[p.requests_partition] += 1
        return load.index(min(load))

    def validate(self) -> None:
        for name, p in self.producers.items():
            assert p.name == name
            assert 0 <= p.requests_partition < self.request_partitions
            assert len(p.assigned) <= p.capacity + 1, (name, len(p.assigned), p.capacity)


def disagreements(report: Report, agreed: Mapping[str, Any], digests: Mapping[str, str]) -> list[str]:
    """What a newcomer holds differently from the learner, one line a key, with the values of both sides."""
    problems = [
        f"{key}: learner has {agreed.get(key)!r}, producer has {report.agreed.get(key)!r}; use the same config file for both"
        for key in sorted(agreed.keys() | report.agreed.keys())
        if agreed.get(key) != report.agreed.get(key)
    ]
    problems += [
        f"{name}: learner has {value}, producer has {report.digests.get(name)}; use the same files on both hosts"
        for name, value in sorted(digests.items())
        if report.digests.get(name) != value
    ]
    return problems
