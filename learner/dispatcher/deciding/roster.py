"""The producers that the dispatcher knows: what each holds, has in hand and can take on.

Invariants: a producer's `held` is what it last acknowledged, never what it was sent; capacity is what it states in all, less
what the dispatcher gave it; time is counted in beats, so a stalled broker or dispatcher makes nobody late; `revision` grows with
everything that the control state tells of producers. Who has room is kept, not searched for: a question after an event costs as
much as there are producers with room, not as there are producers.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from learner.dispatcher.deciding.events import Kind
from schemas.identity import Attempt
from schemas.records.control import Member
from schemas.records.status import Heartbeat, ProducerState, Report

RATE_SMOOTHING = 0.3  # weight of the newest heartbeat in a producer's token rate
MEASURED = 5  # heartbeats with work in hand until a rate counts
MAX_REFUSED = 64  # refused producers that are remembered: the state, which tells them so, must not grow for ever
QUIET_BEATS = 3  # a producer that is silent for longer generates nothing that we know of


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
    measured: int = 0
    """Heartbeats that went into the rate."""
    refusals: int = 0
    """Records of it that were refused, since its last good one."""
    assigned: set[tuple[Kind, Attempt]] = field(default_factory=set)
    tokens_of: dict[tuple[Kind, Attempt], int] = field(default_factory=dict)
    progress_beat: dict[tuple[Kind, Attempt], int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.capacity - len(self.assigned)

    def holds(self, version: int | None, digest: str | None) -> bool:
        return version is not None and self.held == version and self.digest == digest

    def rate(self, beat: int) -> float:
        """Tokens a beat, as far as is known; less the longer it is silent."""
        silent = beat - self.last_beat
        return self.tokens_per_beat * (1.0 if silent <= QUIET_BEATS else QUIET_BEATS / silent)

    def may_serve(self, version: int, max_age: int, *, exact: bool) -> bool:
        """Whether its weights and its state allow work of target `version`."""
        if self.draining or self.state is ProducerState.LEAVING or self.held < 0:
            return False
        return self.held == version if exact else version - max_age <= self.held <= version

    def stalled(self, beat: int, limit: int) -> list[tuple[Kind, Attempt]]:
        """Requests in hand that made no progress for `limit` beats."""
        return [key for key in self.assigned if beat - self.progress_beat.get(key, beat) >= limit]


class Roster:
    """Known producers by name, and the problems of refused ones."""

    def __init__(self, request_partitions: int) -> None:
        self.request_partitions = request_partitions
        self.producers: dict[str, Producer] = {}
        self.refused: dict[str, list[str]] = {}
        self.revision = 0
        self.draining: set[str] = set()
        """Whom an operator wants to leave, also while it is away; over incarnations."""
        self._roomy: dict[str, Producer] = {}
        self._full: dict[str, Producer] = {}

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
            draining=report.producer in self.draining,
        )
        self.producers[report.producer] = producer
        self._sort_in(producer)
        self.revision += 1
        return producer

    def heartbeat(self, record: Heartbeat, beat: int) -> Producer | None:
        """Fold in a heartbeat. None for a producer that is not in the roster: ignored and counted by the caller."""
        producer = self.producers.get(record.producer)
        if producer is None:
            return None
        if producer.engine_tokens is not None:  # the first total may be of a long life before it joined
            generated = max(0, record.engine_tokens - producer.engine_tokens)
            producer.suspect = producer.suspect and generated == 0
            paused = ProducerState.PAUSED in (producer.state, record.state)
            if (
                producer.assigned or generated
            ) and not paused:  # having nothing to do, or standing still by order, is not being slow
                rate = generated / max(1, beat - producer.last_beat)
                producer.tokens_per_beat += RATE_SMOOTHING * (rate - producer.tokens_per_beat)
                producer.measured += 1
        producer.engine_tokens = record.engine_tokens
        producer.last_beat = beat
        producer.state = record.state
        if producer.capacity != record.capacity:
            producer.capacity = record.capacity
            self._sort_in(producer)
        for item in record.in_hand:
            key: tuple[Kind, Attempt] = (item.kind, item.key)
            if key in producer.assigned and item.tokens > producer.tokens_of.get(key, -1):
                producer.tokens_of[key] = item.tokens
                producer.progress_beat[key] = beat
        return producer

    def give(self, producer: Producer, kind: Kind, key: Attempt, beat: int) -> None:
        producer.assigned.add((kind, key))
        producer.progress_beat[kind, key] = beat
        self._sort_in(producer)

    def take(self, name: str, kind: Kind, key: Attempt) -> None:
        """The producer has this request no more (published, failed, cancelled)."""
        producer = self.producers.get(name)
        if producer is not None:
            producer.assigned.discard((kind, key))
            producer.tokens_of.pop((kind, key), None)
            producer.progress_beat.pop((kind, key), None)
            self._sort_in(producer)
            self.revision += producer.draining  # it may be dismissed now

    def remove(self, name: str) -> Producer | None:
        self._roomy.pop(name, None)
        self._full.pop(name, None)
        self.revision += 1
        return self.producers.pop(name, None)

    def refuse(self, name: str, problems: list[str]) -> None:
        self.refused[name] = problems
        if len(self.refused) > MAX_REFUSED:
            del self.refused[next(iter(self.refused))]
        self.revision += 1

    def loaded(self, name: str, version: int, digest: str | None) -> None:
        """The producer's own ack: it serves these weights."""
        producer = self.producers.get(name)
        if producer is not None:
            producer.held, producer.digest, producer.failed_rounds = version, digest, 0
            producer.suspect = False  # its engine has answered
            self.revision += 1

    def drain(self, name: str) -> bool:
        """No new work for this producer. False if there is no such."""
        producer = self.producers.get(name)
        if producer is None:
            return False
        producer.draining = True
        self.draining.add(name)
        self.revision += 1
        return True

    def _sort_in(self, producer: Producer) -> None:
        free = producer.free
        for group, belongs in ((self._roomy, free > 0), (self._full, free == 0)):
            if belongs:
                group[producer.name] = producer
            else:
                group.pop(producer.name, None)

    def lapsed(self, beat: int, lease_beats: int) -> list[Producer]:
        return [p for p in self.producers.values() if beat - p.last_beat > lease_beats]

    def members(self, busy: Container[str] = ()) -> dict[str, Member]:
        """For the state. busy: members of the open round, who are not dismissed before it is over: others wait for them in it."""
        return {
            p.name: Member(
                requests_partition=p.requests_partition,
                held=p.held,
                digest=p.digest,
                draining=p.draining,
                dismissed=p.draining and not p.assigned and p.name not in busy,
            )
            for p in sorted(self.producers.values(), key=lambda p: p.name)
        }

    def candidates(self, version: int, max_age: int, *, exact: bool, urgent: bool) -> Candidates:
        """Who may get work of target `version` now, the best first.

        It must have acknowledged weights of at least version - max_age (exactly `version` if `exact`) and at most `version`, and
        have room; an `urgent` request may exceed the capacity by one, when nobody has room. A suspect one gets none while there
        is another, be that one full: a prompt must not fail for the engine that it was given.
        """
        able = [p for p in self._roomy.values() if p.may_serve(version, max_age, exact=exact)]
        full = [p for p in self._full.values() if p.may_serve(version, max_age, exact=exact)] if urgent else []
        if any(p.suspect for p in (*able, *full)):
            trusted = any(not p.suspect and p.may_serve(version, max_age, exact=exact) for p in self.producers.values())
            able = [p for p in able if not (trusted and p.suspect)]
            full = [p for p in full if not (trusted and p.suspect)]
        return Candidates(able, full if urgent else None)

    def slow(self, beat: int, share: float) -> set[str]:
        """Producers whose token rate is below `share` of the fleet's median."""
        measured = {p.name: p.rate(beat) for p in self.producers.values() if p.measured >= MEASURED}
        median = statistics.median(measured.values()) if len(measured) > 1 else 0.0
        return {name for name, rate in measured.items() if rate < share * median}

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
            assert (name in self._roomy, name in self._full) == (p.free > 0, p.free == 0), name


Item = tuple[float, int, str, Producer]


class Candidates:
    """Producers that may get work, given out the best first: those with the most room for their speed.

    `full`: may take one request over their capacity, when nobody has room; None if that is not wanted.
    """

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
        return (len(p.assigned) + 1) / max(speed, 0.05) / p.capacity


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
