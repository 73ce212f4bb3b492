"""Drives a `Dispatcher`: feeds events, keeps what it commanded, and checks its invariants after each event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from learner.dispatcher.deciding import commands as cmd
from learner.dispatcher.deciding import events as ev
from learner.dispatcher.deciding.control_state import Announcement, StateChanges
from learner.dispatcher.deciding.dispatcher import Dispatcher
from learner.dispatcher.state.plan import Plan
from learner.link import messages
from schemas.identity import Attempt
from schemas.records.control import State
from schemas.records.requests import Request
from schemas.records.seal import Seal, SealedSlot
from schemas.records.status import FailureKind
from schemas.weights.transports.protocol import Rendezvous
from tests.fakes.dispatcher.plans import make_plan
from tests.fakes.records.groups import make_group, make_trajectory
from tests.fakes.records.make import PLAN_DIGEST, UUID, in_hand, make_ack, make_dataset, make_failed, make_heartbeat, make_report

C = TypeVar("C")


def make_group_read(
    at: Attempt, producer: str = "p0", kind: str = "rollout", offset: int = 0, reward: float = 1.0
) -> ev.GroupRead:
    trajectory = make_trajectory(0, tokens=[1, 2], rewards=reward)
    group = make_group(kind=kind, request=at, row=0, incarnation=0, min_version=0, producer=producer, trajectories=(trajectory,))
    return ev.GroupRead(group, 0, offset, f"sha-{at}", f"content-{at}")


@dataclass(frozen=True, slots=True)
class StateWritten:
    """A control state that the shell would write after the commands of an event."""

    state: State


class Driver:
    """`driver.on(event)` and helpers for what happens often. Topics are made at once; nothing else happens by itself."""

    def __init__(self, plan: Plan | None = None, version: int = 0, inherited: State | None = None, **sections: Any) -> None:
        self.plan = plan or make_plan(**sections)
        self.core = Dispatcher(self.plan, version, inherited)
        self.changes = StateChanges(self.core.state)
        self.commands: list[Any] = []
        self.version, self.digest = version, f"w{version}"
        self.offsets = 0
        self._done(self.core.begin())

    # --- events -------------------------------------------------------------------------------------------------------------

    def on(self, *events: ev.Event) -> list[cmd.Command]:
        """The commands of these events, topics made meanwhile included."""
        before = len(self.commands)
        for event in events:
            self._done(self.core.on(event))
        return self.commands[before:]

    def _done(self, commands: Sequence[cmd.Command]) -> None:
        self.core.state.validate()
        state = self.changes.take()
        if state is not None:  # as the shell does before it sends requests
            self.commands.append(StateWritten(state))
        else:  # and when there is nothing to write, what was written last still says all that holds
            assert Announcement.of(self.core.state).to_state(self.plan) == self.state
        self.commands += commands
        for command in commands:
            if isinstance(command, cmd.MakeTopic):
                self.on(ev.TopicReady(command.kind, command.version, f"id-{command.kind}-{command.version}"))

    def status(self, *records: Any) -> list[cmd.Command]:
        return self.on(*(ev.StatusRead(record) for record in records))

    def beats(self, count: int, hearts: Iterable[str] = ()) -> list[cmd.Command]:
        """`count` beats; `hearts` send a heartbeat before each, with tokens that grow for all that they have in hand."""
        before = len(self.commands)
        for _ in range(count):
            for name in hearts:
                self.heartbeat(name)
            self.on(ev.BeatRead(self.core.state.clock.beat + 1))
        return self.commands[before:]

    def heartbeat(self, name: str, grown: bool = True) -> None:
        producer = self.core.state.roster.producers.get(name)
        work = sorted(producer.assigned) if producer else []
        tokens = self.core.state.clock.beat + 1 if grown else 0
        held = producer.held if producer else 0
        self.status(
            make_heartbeat(name, held, [in_hand(at, kind, tokens) for kind, at in work], engine_tokens=tokens * len(work))
        )

    def ready(self) -> list[cmd.Command]:
        return self.on(messages.LearnerReady(self.version, PLAN_DIGEST, self.digest))

    def ask(self) -> list[cmd.Command]:
        """Rank 0 asks what to do; when it was told to wait before, it asks again."""
        self.core.state.learner.asked = False
        return self.on(messages.NextQuestion())

    def join(self, *names: str, **changes: Any) -> list[cmd.Command]:
        return self.status(*(make_report(name, **{"dataset": make_dataset(), **changes}) for name in names))

    # --- longer ways --------------------------------------------------------------------------------------------------------

    def start(self, *names: str, validation_rows: int | None = None) -> None:
        """Rank 0 is ready, these producers join, and the first round gives them its version."""
        self.ready()
        self.join(*(names or ("p0",)), dataset=make_dataset(validation_rows=validation_rows))
        self.ask()
        self.refit()

    def refit(self, failing: dict[str, str] | None = None, silent: Sequence[str] = ()) -> list[cmd.Command]:
        """Carry the round that is on to its end. `failing` answer with an error, `silent` do not answer at all."""
        before = len(self.commands)
        assert self.core.state.round is not None, "no round is on"
        number, version = self.core.state.round.number, self.core.state.round.version
        for name in sorted(self.core.state.round.members):
            if name not in silent:
                self.ack(name, "pause")
        answer = self.last(messages.StartRefit)
        offers = [Rendezvous("host", 1, f"{number}/{index}") for index in range(len(answer.groups))]
        self.on(messages.RendezvousOpen(offers))
        self.on(messages.WeightsSent(self.digest, {}))
        for name in sorted(name for group in answer.groups for name in group):
            if name in (failing or {}):
                self.ack(name, "loaded", ok=False, error=(failing or {})[name], round=number, version=version)
            elif name not in silent:
                self.ack(name, "loaded", round=number, version=version)
        return self.commands[before:]

    def ack(self, name: str, phase: str, **changes: Any) -> list[cmd.Command]:
        round_ = self.core.state.round
        values: dict[str, Any] = {"incarnation": self.plan.incarnation, "digest": self.digest if phase == "loaded" else None}
        if round_ is not None:
            values |= {"round": round_.number, "version": round_.version}
        return self.status(make_ack(name, phase, **{**values, **changes}))

    def publish(self, *requests: Request, producer: str | None = None) -> list[cmd.Command]:
        """The groups of these requests are read from the log."""
        before = len(self.commands)
        for request in requests:
            self.group(request.key, producer or request.producer, request.kind)
        return self.commands[before:]

    def group(self, at: Attempt, producer: str = "p0", kind: str = "rollout", reward: float = 1.0) -> list[cmd.Command]:
        self.offsets += 1
        return self.on(make_group_read(at, producer, kind, self.offsets, reward))

    def fail(self, request: Request, failure: FailureKind, reason: str = "because") -> list[cmd.Command]:
        return self.status(make_failed(request.producer, request.key, failure, request.kind, reason))

    def fill(self, version: int) -> list[cmd.Command]:
        """Publish every group of a version that was asked for, and read back the seal that follows."""
        before = len(self.commands)
        slots = self.core.state.slots.get("rollout", version)
        assert slots is not None
        for slot in slots.slots:
            for name, at in list(slot.holders.items()):
                self.group(at, name)
        self.read_seal(version)
        return self.commands[before:]

    def read_seal(self, version: int) -> list[cmd.Command]:
        seals = [c.seal for c in self.all(cmd.WriteSeal) if c.seal.version == version]
        assert len(seals) == 1, f"{len(seals)} seals of version {version} were written"
        return self.on(ev.SealRead(seals[0], 99))

    def train(self, waited: bool = False, digest: str | None = None) -> list[cmd.Command]:
        """Rank 0 trains the batch that it was given, and asks again."""
        batch = self.last(cmd.HandOverBatch)
        assert batch.version == self.version
        self.version += 1
        self.digest = digest or f"w{self.version}"
        commands = self.on(messages.VersionTrained(batch.version, waited, self.digest if batch.catch_up else None))
        return commands + self.ask()

    def step(self) -> None:
        """One version from its groups to the end of the next version's refit."""
        self.fill(self.version)
        self.ask()
        self.train()
        if self.core.state.round is not None:
            self.refit()

    # --- what was commanded -------------------------------------------------------------------------------------------------

    def all(self, kind: type[C]) -> list[C]:
        return [command for command in self.commands if isinstance(command, kind)]

    def last(self, kind: type[C]) -> C:
        found = self.all(kind)
        assert found, f"no {kind.__name__} among {self.commands}"
        return found[-1]

    @property
    def state(self) -> State:
        """The last control state."""
        return self.last(StateWritten).state


def started(*names: str, validation_rows: int | None = None, **sections: Any) -> Driver:
    """A run whose first round is over: version 0 is announced and given out."""
    driver = Driver(**sections)
    driver.start(*names, validation_rows=validation_rows)
    return driver


def of(kind: type[C], commands: Sequence[cmd.Command]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def requests(commands: Sequence[cmd.Command], kind: str | None = None) -> list[Request]:
    """Requests among the commands, cancels left out unless asked for."""
    found = [c.request for c in of(cmd.SendRequest, commands)]
    return [r for r in found if (r.kind != "cancel" if kind is None else r.kind == kind)]


def keys(commands: Sequence[cmd.Command], kind: str | None = None) -> list[tuple[str, str]]:
    """(producer, key) of the requests among the commands."""
    return [(r.producer, str(r.key)) for r in requests(commands, kind)]


def foreign_seal(version: int, slots: int = 2) -> Seal:
    """A seal that another learner wrote."""
    entries = {slot: SealedSlot(0, 0, 0, slot, f"sha-{slot}", f"content-{slot}") for slot in range(slots)}
    return Seal(UUID, 0, "config", version, entries)
