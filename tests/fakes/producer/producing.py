"""A producer's core under test: events in, commands out."""

from __future__ import annotations

from typing import Any, TypeVar

from producer import events as ev
from producer.core import ProducerCore
from producer.engine.protocol import Loaded
from schemas.config.dispatch import RefitConfig
from schemas.identity import Attempt
from schemas.records.control import Member, Round, TransferGroup
from schemas.records.status import Ack, Failed, Left, ProducerState
from tests.fakes.records.make import make_claim, make_request, make_state

C = TypeVar("C")


def make_round(number: int = 1, version: int = 0, mode: str = "keep", members: tuple[str, ...] = ("p0",)) -> Round:
    return Round(number=number, version=version, mode=mode, phase="pause", members=list(members))


def transfer(round_: Round) -> Round:
    group = TransferGroup(host="h", port=5, prefix="x", world=len(round_.members) + 1, members=dict(_ranks(round_.members)))
    return round_.model_copy(update={"phase": "transfer", "groups": [group]})


def _ranks(members: list[str]) -> list[tuple[str, int]]:
    return [(name, index + 1) for index, name in enumerate(members)]


class Driver:
    """A core and all its commands. It is `p0`, of incarnation 0 at first; its invariants are asserted after every event."""

    def __init__(self, capacity: int = 2) -> None:
        self.core = ProducerCore("p0", capacity, RefitConfig(phase_timeout_s=8))
        self.incarnation = 0
        self.offset = 100
        self.commands: list[ev.Command] = []

    def stands(self) -> ProducerState:
        """Its state now."""
        return self.core.snapshot.state

    def on(self, event: ev.Event) -> list[ev.Command]:
        commands = self.core.on(event)
        self.core.validate()
        self.commands += commands
        return commands

    def state(self, member: bool = True, **changes: Any) -> list[ev.Command]:
        self.offset += 1
        members = {"p0": Member(requests_partition=3)} if member else {}
        return self.on(ev.ControlRead(make_state(incarnation=self.incarnation, **{"members": members, **changes}), self.offset))

    def claim(self) -> list[ev.Command]:
        self.offset += 1
        self.incarnation = self.offset
        return self.on(ev.ControlRead(make_claim(), self.offset))

    def request(self, at: Attempt, kind: str = "rollout", **changes: Any) -> list[ev.Command]:
        return self.on(ev.RequestRead(make_request(**{"at": at, "kind": kind, "incarnation": self.incarnation, **changes})))

    def cancel(self, at: Attempt, kind: str = "rollout") -> list[ev.Command]:
        return self.request(at, "cancel", cancels=kind)

    def received(self, version: int, digest: str | None = None, error: str | None = None) -> list[ev.Command]:
        loaded = None if error else Loaded(version, digest or f"w{version}", 0.25)
        return self.on(ev.Received(1, loaded, error, 1.5))

    def refit(self, version: int, number: int = 1) -> None:
        """A whole round that goes well."""
        round_ = make_round(number, version)
        self.state(round=round_)
        self.on(ev.Paused(number))
        self.state(round=transfer(round_))
        self.received(version)
        self.state(frontier=version)


def serving(version: int = 0, capacity: int = 2) -> Driver:
    """A producer that has joined and holds `version`."""
    producer = Driver(capacity)
    producer.state(member=False)
    producer.state()
    producer.refit(version)
    assert producer.stands() is ProducerState.SERVING
    return producer


def of(kind: type[C], commands: list[ev.Command]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def said(commands: list[ev.Command]) -> list[Ack | Failed | Left]:
    return [command.record for command in of(ev.Say, commands)]


def started(commands: list[ev.Command]) -> list[str]:
    return [str(command.request.key) for command in of(ev.Start, commands)]
