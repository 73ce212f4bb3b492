"""A run without Kafka, processes or weights: real cores, coupled by simulated logs that every reader reads at its own pace.

Order is kept within a partition and nowhere else. Everything that can happen is a method that moves one thing a little; whoever
drives the world chooses. After every event of a core its invariants are asserted, and the world keeps its own books of what a
log may never show: a token outside its group's ages, a version trained with two batches, a seal of something that is not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from learner.dispatcher import events as de
from learner.dispatcher.core import Dispatcher
from learner.dispatcher.plan import Plan
from producer import events as pe
from producer.core import ProducerCore
from producer.engine import Loaded, TransferOffer
from producer.events import Key
from schemas.control import Claim, DatasetFacts, State
from schemas.draws import row_of
from schemas.group import FinishReason, Span, Trajectory, TrajectoryGroup
from schemas.identity import Attempt
from schemas.requests import Request
from schemas.seal import Seal
from schemas.status import Beat, FailureKind, Report
from tests.fakes.plans import make_plan
from tests.fakes.records import DIGESTS, PLAN_DIGEST, UUID, make_claim, make_heartbeat

Topic = tuple[str, int]
Partition = tuple[Topic, int]
CONTROL, STATUS = ("control", -1), ("status", -1)

_TRAJECTORY = Trajectory(
    tokens=np.array([1], dtype="<u4"),
    mask=np.array([1], dtype="|u1"),
    logprobs=np.array([-1.0], dtype="<f4"),
    spans=(Span(0, 0, 1),),
    finish=FinishReason.STOP,
    rewards={"score": 1.0},
)


@dataclass(frozen=True)
class Published:
    """A group in the log. `versions`: of its tokens, in order; `corrupt`: it is refused by whoever reads it."""

    group: TrajectoryGroup
    versions: tuple[int, ...]
    corrupt: bool = False


@dataclass(frozen=True)
class Settings:
    """What a world is made with."""

    max_age: int = 1
    mode: str = "keep"
    producers: int = 2
    steps: int = 5
    slots: int = 3
    val_period: int = 0
    partitions: int = 2
    save_period: int = 2
    group_size: int | None = None
    same_weights_again: bool = True
    """Whether training a version again gives the same weights."""


class Logs:
    """Every topic, each a list of records a partition."""

    def __init__(self) -> None:
        self.partitions: dict[Partition, list[Any]] = {}
        self.topics: dict[Topic, int] = {}

    def make(self, topic: Topic, partitions: int) -> None:
        if topic not in self.topics:
            self.topics[topic] = partitions
            for p in range(partitions):
                self.partitions[topic, p] = []

    def append(self, topic: Topic, record: Any, partition: int = 0) -> int:
        log = self.partitions[topic, partition]
        log.append(record)
        return len(log) - 1


class Reader:
    """One process's positions."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.positions: dict[Partition, int] = {}

    def waiting(self) -> list[Partition]:
        return [p for p, at in self.positions.items() if at < len(self.logs.partitions[p])]

    def next(self, partition: Partition) -> tuple[int, Any]:
        at = self.positions[partition]
        self.positions[partition] = at + 1
        return at, self.logs.partitions[partition][at]


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
        self.request_ends = {p: len(world.logs.partitions[("requests", -1), p]) for p in range(world.plan.request_partitions)}
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
        if self.outcome is None and self.world.sending(operation.offer.prefix):
            return False
        loaded = self.outcome if isinstance(self.outcome, Loaded) else None
        error = None if loaded else str(self.outcome or "nobody sends")
        self.operation = self.outcome = None
        if loaded is not None:
            self.version = loaded.version
        self.on(pe.Received(operation.round, loaded, error, 0.1))
        return True

    def heartbeat(self) -> None:
        view = self.core.view
        if self.alive and view.uuid is not None:
            self.world.logs.append(
                STATUS,
                make_heartbeat(
                    self.name,
                    view.held,
                    [
                        item.model_copy(update={"tokens": len(self.rollouts[item.kind, item.key].versions)})
                        for item in view.in_hand
                        if (item.kind, item.key) in self.rollouts
                    ],
                    state=view.state,
                    digest=view.digest,
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
                self.reader.positions[("requests", -1), partition] = self.request_ends[partition]
            case pe.Start(request):
                assert request.min_version <= self.version <= request.T, (request, self.version)
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
                state=core.view.state,
                in_hand=list(core.view.in_hand) if incarnation is not None else [],
                capacity=core.capacity,
                plan_digest=PLAN_DIGEST,
                dataset=self.world.dataset,
                agreed={"grpo.num_prompts_per_step": 2},
                digests={**DIGESTS, "environment": "e"},
            ),
        )


class Fenced(Exception):
    """A learner that is not the newest was about to do what only the newest may."""


class SimLearner:
    """A `Dispatcher` with its shell, and rank 0. `version` and `digest` are those of rank 0's weights."""

    def __init__(self, world: World, version: int, digest: str) -> None:
        self.world = world
        self.version, self.digest = version, digest
        logs = world.logs
        before = world.state()
        status_end = len(logs.partitions[STATUS, 0])
        self.incarnation = logs.append(CONTROL, make_claim())
        self.control_end = self.incarnation + 1
        self.core = Dispatcher(world.plan_of(self.incarnation), version, before)
        self.reader = Reader(logs)
        self.reader.positions[STATUS, 0] = status_end
        self.jobs: deque[Callable[[], None]] = deque()
        self.read_past: tuple[int, dict[Partition, int]] | None = None
        self.early: dict[int, de.SealRead] = {}
        self.seals_read: set[int] = set()
        self.seals_written: set[int] = set()
        self.beat_number = 0
        self.beat_due = True
        self.answer: de.AnswerRefit | de.AnswerBatch | de.AnswerFinish | de.AnswerStop | None = None
        self.listening: de.AnswerRefit | None = None
        self.patience = 0
        self.ready = False
        self.over = False
        self.finished = False
        if before is not None:
            for kind, topic_version in sorted(logs.topics):
                if kind == "rollout" and topic_version >= version:
                    self.core.topics_asked.add(("rollout", topic_version))
                    self.topic_ready("rollout", topic_version)
        self.do(self.core.begin())

    # --- moves --------------------------------------------------------------------------------------------------------------

    def read(self, which: int) -> bool:
        waiting = self.reader.waiting()
        if not waiting or self.over:
            return False
        (topic, partition) = waiting[which % len(waiting)]
        offset, record = self.reader.next((topic, partition))
        if topic == STATUS:
            self.on_status(record)
        else:
            self.on_version_record(topic, partition, offset, record)
        if self.read_past is not None:
            self.judge_read_past()
        return True

    def on_status(self, record: Any) -> None:
        if isinstance(record, Beat):
            if record.incarnation == self.incarnation:
                self.beat_due = True
                if self.fence() and self.core.published is not None:
                    self.publish(self.core.published)
                self.on(de.BeatRead(record.number))
        else:
            self.on(de.StatusRead(record))

    def on_version_record(self, topic: Topic, partition: int, offset: int, record: Published | Seal) -> None:
        kind, version = topic
        if isinstance(record, Seal):
            if version not in self.seals_read:
                self.seals_read.add(version)
                self.early[version] = de.SealRead(record, offset)
        elif record.corrupt:
            assert kind in ("rollout", "validation")
            group = record.group
            self.on(de.GroupRefused(group.kind, version, str(group.request), group.producer, "digest"))
        else:
            sha = f"{partition}:{offset}"
            self.on(de.GroupRead(record.group, partition, offset, sha, sha))
        early = self.early.get(version) if kind == "rollout" else None
        if early is not None and all(self.reader.positions[topic, e.partition] > e.offset for e in early.seal.slots.values()):
            self.on(self.early.pop(version))

    def beat(self) -> bool:
        if self.over or not self.beat_due:
            return False
        self.beat_due = False
        self.beat_number += 1
        self.world.logs.append(STATUS, Beat(uuid=UUID, incarnation=self.incarnation, number=self.beat_number))
        return True

    def worker(self) -> bool:
        if self.over or not self.jobs:
            return False
        self.jobs.popleft()()
        return True

    def rank0(self) -> bool:
        """Rank 0's next move."""
        if self.over:
            return False
        answer = self.answer
        if not self.ready:
            self.ready = True
            self.on(de.LearnerReady(self.version, PLAN_DIGEST, self.digest))
        elif answer is None:
            self.core.asked = False  # the shell has answered `wait`, and rank 0 asks again
            self.on(de.NextAsked())
        elif isinstance(answer, de.AnswerRefit):
            if self.listening is None:
                self.listening, self.patience = answer, 6
                prefixes = [self.prefix(index) for index in range(len(answer.groups))]
                self.on(de.Offered([("host", 1, prefix, None) for prefix in prefixes]))
            elif self.patience > 0 and not all(self.members_there(i) for i in range(len(answer.groups))):
                self.patience -= 1
            else:
                self.send(answer)
        elif isinstance(answer, de.AnswerBatch):
            self.train(answer)
        elif isinstance(answer, de.AnswerFinish):
            self.answer = None
            self.on(de.Finished())
            self.finished = self.over = True
        else:
            self.over = True
        return True

    # --- refit --------------------------------------------------------------------------------------------------------------

    def prefix(self, index: int) -> str:
        assert self.answer is not None and isinstance(self.answer, de.AnswerRefit)
        return f"{self.incarnation}/{self.answer.number}/{index}"

    def members_there(self, index: int) -> bool:
        assert isinstance(self.answer, de.AnswerRefit)
        return all(self.world.receiver(name, self.prefix(index)) is not None for name in self.answer.groups[index])

    def send(self, answer: de.AnswerRefit) -> None:
        """Send to each group: it fails as a whole, but under faults a member may have got all of it."""
        failed: dict[int, str] = {}
        for index, group in enumerate(answer.groups):
            fault = self.world.take_transfer_fault()
            good = self.members_there(index) and fault == 0
            if not good:
                failed[index] = "scripted failure"
            for position, name in enumerate(group):
                receiver = self.world.receiver(name, self.prefix(index))
                if receiver is not None:
                    late = fault > 1 and position % 2 == 0
                    receiver.outcome = Loaded(self.version, self.digest, 0.0) if good or late else "reset by peer"
        assert answer.version == self.version
        self.listening = self.answer = None
        self.on(de.Sent(self.digest, failed))

    # --- training -----------------------------------------------------------------------------------------------------------

    def train(self, answer: de.AnswerBatch) -> None:
        assert answer.version == self.version
        self.world.check_batch(answer.version, answer.seal, answer.seal_offset)
        self.version += 1
        again = "" if self.world.settings.same_weights_again else f"-{self.incarnation}"
        self.digest = f"w{self.version}{again}"
        if self.version % self.world.settings.save_period == 0:
            self.world.checkpoint = (self.version, self.digest)
        self.answer = None
        self.on(
            de.Trained(answer.version, waited=self.beat_number % 2 == 0, weights_digest=self.digest if answer.catch_up else None)
        )

    # --- commands -----------------------------------------------------------------------------------------------------------

    def on(self, event: de.Event) -> None:
        self.do(self.core.on(event))
        self.core.validate()

    def do(self, commands: list[de.Command]) -> None:
        for command in commands:
            self.obey(command)

    def obey(self, command: de.Command) -> None:
        match command:
            case de.PublishState(state):
                self.publish(state)
            case de.SendRequest(request, partition):
                self.world.check_request(request, self.core)
                self.world.logs.append(("requests", -1), request, partition)
            case de.MakeTopic(kind, version):
                self.jobs.append(lambda: self.make_topic(kind, version))
            case de.CloseTopic(kind, version):
                for partition in [p for p in self.reader.positions if p[0] == (kind, version)]:
                    del self.reader.positions[partition]
            case de.WriteSeal(seal):
                self.fence()
                assert seal.version not in self.seals_written, "one learner seals a version once"
                self.seals_written.add(seal.version)
                self.world.logs.append(("rollout", seal.version), seal, 0)
            case de.ReadPast(beat):
                self.jobs.append(lambda: self.start_read_past(beat))
            case de.AnswerRefit():
                self.fence()
                self.answer = command
            case de.AnswerBatch() | de.AnswerFinish() | de.AnswerStop():
                self.answer = command
            case de.ValidationDone(version, rewards, _, missing):
                assert len(rewards) + missing == self.world.dataset.validation_rows, command
                self.world.validated.setdefault(version, []).append(missing)
            case de.Note():
                pass

    def publish(self, state: State) -> None:
        self.world.check_state(state)
        self.world.logs.append(CONTROL, state)

    def make_topic(self, kind: de.Kind, version: int) -> None:
        self.world.logs.make((kind, version), self.world.settings.partitions)
        self.topic_ready(kind, version)

    def topic_ready(self, kind: de.Kind, version: int) -> None:
        for partition in range(self.world.settings.partitions):
            self.reader.positions[(kind, version), partition] = 0
        self.on(de.TopicReady(kind, version, f"id-{kind}-{version}"))

    def start_read_past(self, beat: int) -> None:
        ends = {p: len(self.world.logs.partitions[p]) for p in self.reader.positions if p[0] != STATUS}
        self.read_past = (beat, ends)
        self.judge_read_past()

    def judge_read_past(self) -> None:
        assert self.read_past is not None
        beat, ends = self.read_past
        if all(self.reader.positions.get(p, end) >= end for p, end in ends.items()):
            self.read_past = None
            self.on(de.CaughtUp(beat))

    def fence(self) -> bool:
        """Read `control` to its end: whether a lower incarnation wrote. Ends a learner that is not the newest."""
        log = self.world.logs.partitions[CONTROL, 0]
        lower = False
        for record in log[self.control_end :]:
            if isinstance(record, Claim):
                raise Fenced
            lower = lower or record.incarnation < self.incarnation
        self.control_end = len(log)
        return lower


class World:
    """The run. `faults` of transfers are queued by the driver and used up by the next sends."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.logs = Logs()
        self.plan = self.plan_of(0)
        self.capacity = 2
        self.dataset = DatasetFacts(rows=7, digest="data", validation_rows=2 if settings.val_period else None)
        self.logs.make(CONTROL, 1)
        self.logs.make(STATUS, 1)
        self.logs.make(("requests", -1), self.plan.request_partitions)
        self.producers: list[SimProducer] = []
        self.transfer_faults: deque[int] = deque()
        self.batches: dict[int, tuple[Seal, int]] = {}
        self.validated: dict[int, list[int]] = {}
        self.highest: int | None = None
        self.checkpoint = (0, "w0")
        self.learners = 1
        self.learner = SimLearner(self, *self.checkpoint)
        for _ in range(settings.producers):
            self.join()

    def plan_of(self, incarnation: int) -> Plan:
        s = self.settings
        return make_plan(
            incarnation=incarnation,
            grpo={
                "num_prompts_per_step": s.slots,
                "max_num_steps": s.steps,
                "max_trajectory_age_steps": s.max_age,
                "val_period": s.val_period,
                "val_at_start": s.val_period > 0,
                "val_timeout_s": 20,
            },
            refit={"mode": s.mode, "phase_timeout_s": 6, "group_size": s.group_size},
            dispatch={
                "lease_beats": 4,
                "stall_timeout_s": 12,
                "start_timeout_s": 5,
                "no_progress_timeout_s": 10**6,
                "no_producer_timeout_s": 10**6,
            },
            producer_count=s.producers,
            request_partitions=2,
        )

    # --- happenings ---------------------------------------------------------------------------------------------------------

    def join(self) -> SimProducer:
        producer = SimProducer(self, f"p{len(self.producers)}")
        self.producers.append(producer)
        return producer

    def kill_learner(self, zombie_moves: int = 0) -> None:
        """The learner dies, or is taken for dead and goes on for some moves; another goes on from the last checkpoint."""
        old = self.learner
        self.learners += 1
        self.learner = SimLearner(self, *self.checkpoint)
        try:
            for which in range(zombie_moves):
                old.read(which)
                old.rank0()
        except Fenced:
            pass

    def publish(self, producer: str, request: Request, versions: tuple[int, ...], *, corrupt: bool) -> None:
        kind = "validation" if request.kind == "validation" else "rollout"
        age = 0 if kind == "validation" else self.settings.max_age
        assert all(request.T - age <= v <= request.T for v in versions), (request, versions)
        assert self.settings.mode == "keep" or len(set(versions)) <= 1, (request, versions)
        if kind == "rollout":
            row = row_of(self.plan.seed, self.dataset.rows, self.settings.slots, request.T, request.slot, request.draw)
            assert request.row == row
        group = TrajectoryGroup(
            run=UUID,
            kind=kind,  # type: ignore[arg-type]
            request=request.key,
            row=request.row,
            incarnation=request.incarnation,
            min_version=request.min_version,
            producer=producer,
            prompt=_TRAJECTORY.tokens,
            sampling={},
            trajectories=(_TRAJECTORY,),
            seconds=0.1,
        )
        partition = request.slot % self.settings.partitions
        self.logs.append((kind, request.T), Published(group, versions, corrupt), partition)

    def duplicate(self, which: int) -> None:
        """A record that lies in `status` or in a version's topic comes again."""
        partitions = [p for p in self.logs.partitions if p[0] not in (CONTROL, ("requests", -1)) and self.logs.partitions[p]]
        if partitions:
            partition = partitions[which % len(partitions)]
            records = self.logs.partitions[partition]
            record = records[(which * 7) % len(records)]
            if not isinstance(record, Beat):
                records.append(record)

    # --- what others see ----------------------------------------------------------------------------------------------------

    def state(self) -> State | None:
        """The last state on `control` that exists: not written by an incarnation below an earlier claim."""
        found, claim = None, -1
        for offset, record in enumerate(self.logs.partitions[CONTROL, 0]):
            if isinstance(record, Claim):
                claim = offset
            elif record.incarnation >= claim:
                found = record
        return found

    def live(self) -> list[SimProducer]:
        return [p for p in self.producers if p.alive and not p.frozen]

    def sending(self, prefix: str) -> bool:
        """Whether rank 0 will still send to the group of this rendezvous."""
        learner = self.learner
        if learner.listening is None or learner.over:
            return False
        return any(learner.prefix(index) == prefix for index in range(len(learner.listening.groups)))

    def receiver(self, name: str, prefix: str) -> SimProducer | None:
        for producer in self.producers:
            offer = producer.receiving if producer.healthy else None
            if producer.name == name and offer is not None and offer.prefix == prefix:
                return producer
        return None

    def take_transfer_fault(self) -> int:
        """0: none; 1: nobody got anything; 2: it failed, but some members got all."""
        return self.transfer_faults.popleft() if self.transfer_faults else 0

    # --- the books ----------------------------------------------------------------------------------------------------------

    def check_state(self, state: State) -> None:
        if state.incarnation == self.learner_incarnation():
            assert self.highest is None or (state.F is not None and state.F >= self.highest), (state.F, self.highest)
            self.highest = state.F
        assert len(state.window) <= self.settings.max_age + 1
        for version in state.window:
            assert state.F is not None and state.F <= version <= state.F + self.settings.max_age
            assert version < self.settings.steps

    def learner_incarnation(self) -> int:
        claims = [o for o, record in enumerate(self.logs.partitions[CONTROL, 0]) if isinstance(record, Claim)]
        return claims[-1]

    def check_request(self, request: Request, core: Dispatcher) -> None:
        if request.kind == "cancel":
            return
        held = core.roster.producers[request.producer].held
        assert request.T - self.settings.max_age <= held <= request.T, (request, held)
        if request.kind == "validation":
            assert held == request.T
        else:
            assert request.T in core.window and request.T > core.sealed_through

    def check_batch(self, version: int, seal: Seal, offset: int) -> None:
        """The first seal of the log is the batch of every learner; each of its slots is a whole group of that slot."""
        first = next((o, r) for o, r in enumerate(self.logs.partitions[("rollout", version), 0]) if isinstance(r, Seal))
        assert (offset, seal) == first
        assert self.batches.setdefault(version, (seal, offset)) == (seal, offset)
        assert sorted(seal.slots) == list(range(self.settings.slots))
        for slot, entry in seal.slots.items():
            record = self.logs.partitions[("rollout", version), entry.partition][entry.offset]
            assert isinstance(record, Published) and not record.corrupt
            assert record.group.request == Attempt(version, slot, entry.draw, entry.attempt)
            assert all(version - self.settings.max_age <= v <= version for v in record.versions)

    # --- a fair driver ------------------------------------------------------------------------------------------------------

    def fair_round(self) -> None:
        """About a second in which everybody that can does what is to be done."""
        learner = self.learner
        learner.beat()
        for move in (learner.worker, lambda: learner.read(0)):
            while move():
                pass
        learner.rank0()
        for producer in self.live():
            while producer.read(0):
                pass
            producer.engine()
            for _ in range(2 * len(producer.rollouts) + len(producer.local)):
                producer.work(self.learner.beat_number)
            producer.heartbeat()

    def run_on(self, rounds: int) -> int:
        """Fair rounds until the run is finished; returns how many it took.

        Raises:
            AssertionError: not within `rounds`.
        """
        for done in range(rounds):
            if self.learner.finished:
                return done
            if self.learner.over:  # stopped: somebody starts it again
                self.kill_learner()
            if not any(p.healthy for p in self.producers):
                self.join()
            self.fair_round()
        raise AssertionError(f"not finished after {rounds} rounds:\n" + "\n".join(self.story()))

    def story(self) -> Iterator[str]:
        core = self.learner.core
        yield f"v={core.v} F={core.F} sealed_through={core.sealed_through} window={core.window} round={core.round}"
        yield f"stop={core.stop} awaited={core.awaited} settled={core.settled} validation={core.validation.version}"
        yield f"rank 0: {self.learner.answer}, waits for {core.waits_for()}"
        for slots in core.table.open_versions.values():
            for slot in slots.slots:
                yield f"{slots.kind} {slot.next_key} {slot.state.value} {slot.holders} {list(slot.story)[-6:]}"
        for p in self.producers:
            known = core.roster.producers.get(p.name)
            where = f"alive={p.alive} frozen={p.frozen} hung={p.hung} gone={p.gone}"
            yield f"{p.name} {where} {p.core.freeze} {p.core.engine} held={p.version}"
            yield f"    work={ {k: w.running for k, w in p.core.work.items()} } roster={known}"
