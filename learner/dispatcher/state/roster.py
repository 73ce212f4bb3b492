"""The producers that the dispatcher knows: what each holds, has in hand and can take on.

Invariants: capacity is what a producer states, less what the dispatcher gave it; time is counted in beats, so a stalled broker or
dispatcher makes nobody late. Who has room is kept, not searched for: a question after an event costs as much as there are
producers with room, not as there are producers.
"""

from __future__ import annotations

import statistics
from collections.abc import Container

from learner.dispatcher.state.candidates import Candidates
from learner.dispatcher.state.members import Members
from learner.dispatcher.state.producer import Producer
from learner.dispatcher.state.slots import Kind
from schemas.identity import Attempt
from schemas.records.control import Member
from schemas.records.status import Heartbeat, Report

MEASURED = 5  # heartbeats with work in hand until a rate counts


class Roster:
    """Known producers by name. `members` is what the control state says of them."""

    def __init__(self, request_partitions: int) -> None:
        self.request_partitions = request_partitions
        self.producers: dict[str, Producer] = {}
        self.members = Members()
        self.draining: set[str] = set()
        """Whom an operator wants to leave, also while it is away; over incarnations."""
        self._roomy: dict[str, Producer] = {}
        self._full: dict[str, Producer] = {}

    def join(self, report: Report, beat: int) -> Producer:
        """Take in a producer by its report; a known one is refreshed, with nothing in hand.

        A partition that the producer was given, by whichever incarnation, stays its own: it reads no other.
        """
        name, partition = report.producer, report.requests_partition
        if partition is None:
            known = self.members.get(name)
            partition = self._emptiest_partition() if known is None else known.requests_partition
        draining = name in self.draining
        self.members.put(name, Member(requests_partition=partition, held=report.held, digest=report.digest, draining=draining))
        producer = Producer(
            name=name,
            members=self.members,
            world_size=report.engine_world_size,
            capacity=report.capacity,
            state=report.state,
            last_beat=beat,
            joined_beat=beat,
        )
        self.producers[name] = producer
        self._sort_in(producer)
        return producer

    def heartbeat(self, record: Heartbeat, beat: int) -> Producer | None:
        """Fold in a heartbeat. None for a producer that is not in the roster: ignored and counted by the caller."""
        producer = self.producers.get(record.producer)
        if producer is None:
            return None
        producer.heard(record, beat)
        if producer.capacity != record.capacity:
            producer.capacity = record.capacity
            self._sort_in(producer)
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

    def remove(self, name: str) -> Producer | None:
        self._roomy.pop(name, None)
        self._full.pop(name, None)
        self.members.drop(name)
        return self.producers.pop(name, None)

    def loaded(self, name: str, version: int, digest: str | None) -> None:
        """The producer's own ack: it serves these weights."""
        producer = self.producers.get(name)
        if producer is not None:
            self.members.change(name, held=version, digest=digest)
            producer.failed_rounds = 0
            producer.suspect = False  # its engine has answered

    def drain(self, name: str) -> bool:
        """No new work for this producer. False if there is no such."""
        if name not in self.producers:
            return False
        self.members.change(name, draining=True)
        self.draining.add(name)
        return True

    def dismiss_idle(self, busy: Container[str] = ()) -> None:
        """Draining producers with nothing in hand may leave.

        busy: members of the open round, who are not dismissed before it is over: others wait for them in it.
        """
        for name in self.draining:
            producer = self.producers.get(name)
            if producer is not None:
                self.members.change(name, dismissed=not producer.assigned and name not in busy)

    def lapsed(self, beat: int, lease_beats: int) -> list[Producer]:
        return [p for p in self.producers.values() if beat - p.last_beat > lease_beats]

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

    def _sort_in(self, producer: Producer) -> None:
        free = producer.free
        for group, belongs in ((self._roomy, free > 0), (self._full, free == 0)):
            if belongs:
                group[producer.name] = producer
            else:
                group.pop(producer.name, None)

    def _emptiest_partition(self) -> int:
        load = [0] * self.request_partitions
        for member in self.members.values():
            load[member.requests_partition] += 1
        return load.index(min(load))

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        assert self.producers.keys() == self.members.keys()
        for name, p in self.producers.items():
            assert p.name == name
            assert 0 <= p.member.requests_partition < self.request_partitions
            assert p.draining == (name in self.draining), name
            assert len(p.assigned) <= p.capacity + 1, (name, len(p.assigned), p.capacity)
            assert (name in self._roomy, name in self._full) == (p.free > 0, p.free == 0), name
