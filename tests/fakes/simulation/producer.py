"""A producer of the simulation: the real core, and a shell and an engine that do one thing at a time when they are told to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producer import events as pe
from producer.core import ProducerCore
from producer.engine.protocol import Loaded, TransferOffer
from producer.events import Key
from schemas.records.requests import Request
from schemas.records.status import FailureKind, Report
from tests.fakes.records.make import DIGESTS, PLAN_DIGEST, make_heartbeat
from tests.fakes.simulation.logs import CONTROL, REQUESTS, STATUS, Reader

if TYPE_CHECKING:
    from tests.fakes.simulation.world import World


@dataclass
class Rollout:
    request: Request
    versions: list[int] = field(default_factory=list)


class SimProducer:
    """A `ProducerCore` with a shell and an engine that do what they are told, one move at a time."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.core = ProducerCore(name, world.capacity, world.plan.refit)
        self.reader = Reader(world.logs)
        control = world.logs.partitions[CONTROL, 0]
        self.reader.positions[CONTROL, 0] = max(0, len(control) - 1)
        self.request_ends = {p: len(world.logs.partitions[REQUESTS, p]) for p in range(world.plan.request_partitions)}
        self.rollouts: dict[Key, Rollout] = {}
        self.local: deque[pe.Event] = deque()
        self.operation: pe.Pause | pe.Receive | None = None
        self.outcome: Loaded | str | None = None
        self.paused = False
        self.version = -1
        self.tokens = 0
        self.frozen = False
        """The whole process stands still."""
        self.hung = False
        """The engine stands still; the process and its heartbeats go on."""
        self.gone: pe.Exit | None = None
        self.killed = False

    @property
    def alive(self) -> bool:
        return self.gone is None and not self.killed

    @property
    def healthy(self) -> bool:
        return self.alive and not self.frozen and not self.hung

    @property
    def receiving(self) -> TransferOffer | None:
        return self.operation.offer if isinstance(self.operation, pe.Receive) and self.outcome is None else None

    # --- moves --------------------------------------------------------------------------------------------------------------

    def read(self, which: int) -> bool:
        waiting = self.reader.waiting()
        if not waiting or not self.alive:
            return False
        partition = waiting[which % len(waiting)]
        offset, record = self.reader.next(partition)
        self.on(pe.ControlRead(record, offset) if partition[0] == CONTROL else pe.RequestRead(record))
        return True

    def work(self, which: int) -> bool:
        """A local event, or one token of one rollout, or its end."""
        if not self.alive:
            return False
        if self.local:
            self.on(self.local.popleft())
            return True
        if self.paused or self.hung or not self.rollouts:
            return False
        key = list(self.rollouts)[which % len(self.rollouts)]
        rollout = self.rollouts[key]
        if len(rollout.versions) < 1 + (key[1].slot + key[1].version) % 3:
            rollout.versions.append(self.version)
            self.tokens += 1
        else:
            self.publish(key)
        return True

    def publish(self, key: Key, *, corrupt: bool = False) -> None:
        rollout = self.rollouts.pop(key)
        self.world.publish(self.name, rollout.request, tuple(rollout.versions), corrupt=corrupt)
        self.on(pe.Published(key))

    def fail(self, which: int, failure: FailureKind) -> None:
        if self.alive and self.rollouts:
            key = list(self.rollouts)[which % len(self.rollouts)]
            del self.rollouts[key]
            self.on(pe.RolloutEnded(key, failure, f"scripted {failure.value}"))

    def engine(self) -> bool:
        """The engine is done with what it was asked for, if it can be."""
        if not self.alive or self.hung or self.operation is None:
            return False
        operation = self.operation
        if isinstance(operation, pe.Pause):
            self.operation, self.paused = None, True
            self.on(pe.Paused(operation.round))
            return True
        if self.outcome is None and self.world.sending(operation.offer.at.prefix):
            return False
        loaded = self.outcome if isinstance(self.outcome, Loaded) else None
        error = None if loaded else str(self.outcome or "nobody sends")
        self.operation = self.outcome = None
        if loaded is not None:
            self.version = loaded.version
        self.on(pe.Received(operation.round, loaded, error, 0.1))
        return True

    def heartbeat(self) -> None:
        snapshot = self.core.snapshot
        if self.alive and snapshot.uuid is not None:
            self.world.logs.append(
                STATUS,
                make_heartbeat(
                    self.name,
                    snapshot.held,
                    [
                        item.model_copy(update={"tokens": len(self.rollouts[item.kind, item.key].versions)})
                        for item in snapshot.in_hand
                        if (item.kind, item.key) in self.rollouts
                    ],
                    state=snapshot.state,
                    digest=snapshot.digest,
                    engine_tokens=self.tokens,
                    capacity=self.core.capacity,
                ),
            )

    # --- commands -----------------------------------------------------------------------------------------------------------

    def on(self, event: pe.Event) -> None:
        for command in self.core.on(event):
            self.obey(command)
        self.core.validate()
        assert self.core.exited or self.core.held == self.version

    def obey(self, command: pe.Command) -> None:
        match command:
            case pe.Say(record):
                self.world.logs.append(STATUS, record)
            case pe.SendReport(incarnation):
                self.report(incarnation)
            case pe.ReadRequests(partition):
                self.reader.positions[REQUESTS, partition] = self.request_ends[partition]
            case pe.Start(request):
                assert request.min_version <= self.version <= request.target, (request, self.version)
                key: Key = ("validation" if request.kind == "validation" else "rollout", request.key)
                assert key not in self.rollouts, key
                self.rollouts[key] = Rollout(request)
            case pe.Abort(key):
                del self.rollouts[key]
                self.local.append(pe.RolloutEnded(key, None, "cancelled"))
            case pe.Pause() | pe.Receive():
                assert self.operation is None, "the engine is asked for one thing at a time"
                assert self.paused == isinstance(command, pe.Receive)
                self.operation = command
            case pe.Resume():
                assert self.operation is None, "the engine is asked for one thing at a time"
                self.paused = False
            case pe.Exit():
                self.gone = command

    def report(self, incarnation: int | None) -> None:
        core = self.core
        assert core.uuid is not None
        self.world.logs.append(
            STATUS,
            Report(
                uuid=core.uuid,
                producer=self.name,
                host="host",
                pid=1,
                incarnation=incarnation,
                requests_partition=core.partition,
                engine_world_size=1,
                held=core.held,
                digest=core.digest,
                state=core.snapshot.state,
                in_hand=list(core.snapshot.in_hand) if incarnation is not None else [],
                capacity=core.capacity,
                plan_digest=PLAN_DIGEST,
                dataset=self.world.dataset,
                agreed={"grpo.num_prompts_per_step": 2},
                digests={**DIGESTS, "environment": "e"},
            ),
        )
