"""A learner of the simulation: the real dispatcher core, its shell, and rank 0, one move at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from learner.dispatcher.deciding import commands as cmd
from learner.dispatcher.deciding import events as de
from learner.dispatcher.deciding.control_state import StateChanges
from learner.dispatcher.deciding.dispatcher import Dispatcher
from learner.dispatcher.state.slots import Kind
from learner.link import messages
from producer.engine.protocol import Loaded
from schemas.records.control import Claim, State
from schemas.records.seal import Seal
from schemas.records.status import Beat
from schemas.weights.transports.protocol import Rendezvous
from tests.fakes.records.make import PLAN_DIGEST, UUID, make_claim
from tests.fakes.simulation.logs import CONTROL, REQUESTS, STATUS, Partition, Published, Reader, Topic

if TYPE_CHECKING:
    from tests.fakes.simulation.world import World


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
        self.changes = StateChanges(self.core.state)
        self.reader = Reader(logs)
        self.reader.positions[STATUS, 0] = status_end
        self.jobs: deque[Callable[[], None]] = deque()
        self.read_past: tuple[int, dict[Partition, int]] | None = None
        self.early: dict[int, de.SealRead] = {}
        self.seals_read: set[int] = set()
        self.seals_written: set[int] = set()
        self.beat_number = 0
        self.beat_due = True
        self.answer: messages.StartRefit | cmd.HandOverBatch | messages.FinishRun | messages.EndRun | None = None
        self.listening: messages.StartRefit | None = None
        self.patience = 0
        self.ready = False
        self.over = False
        self.finished = False
        if before is not None:
            for kind, topic_version in sorted(logs.topics):
                if kind == "rollout" and topic_version >= version:
                    self.core.state.topics.making.add(("rollout", topic_version))
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
                if self.fence():
                    self.changes.forget()
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
            self.on(messages.LearnerReady(self.version, PLAN_DIGEST, self.digest))
        elif answer is None:
            self.core.state.learner.asked = False  # the shell has answered `wait`, and rank 0 asks again
            self.on(messages.NextQuestion())
        elif isinstance(answer, messages.StartRefit):
            if self.listening is None:
                self.listening, self.patience = answer, 6
                prefixes = [self.prefix(index) for index in range(len(answer.groups))]
                self.on(messages.RendezvousOpen([Rendezvous("host", 1, prefix, None) for prefix in prefixes]))
            elif self.patience > 0 and not all(self.members_there(i) for i in range(len(answer.groups))):
                self.patience -= 1
            else:
                self.send(answer)
        elif isinstance(answer, cmd.HandOverBatch):
            self.train(answer)
        elif isinstance(answer, messages.FinishRun):
            self.answer = None
            self.on(messages.RunFinished())
            self.finished = self.over = True
        else:
            self.over = True
        return True

    # --- refit --------------------------------------------------------------------------------------------------------------

    def prefix(self, index: int) -> str:
        assert self.answer is not None and isinstance(self.answer, messages.StartRefit)
        return f"{self.incarnation}/{self.answer.number}/{index}"

    def members_there(self, index: int) -> bool:
        assert isinstance(self.answer, messages.StartRefit)
        return all(self.world.receiver(name, self.prefix(index)) is not None for name in self.answer.groups[index])

    def send(self, answer: messages.StartRefit) -> None:
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
        self.on(messages.WeightsSent(self.digest, failed))

    # --- training -----------------------------------------------------------------------------------------------------------

    def train(self, answer: cmd.HandOverBatch) -> None:
        assert answer.version == self.version
        self.world.check_batch(answer.version, answer.seal, answer.seal_offset)
        self.version += 1
        again = "" if self.world.settings.same_weights_again else f"-{self.incarnation}"
        self.digest = f"w{self.version}{again}"
        if self.version % self.world.settings.save_period == 0:
            self.world.checkpoint = (self.version, self.digest)
        self.answer = None
        self.on(
            messages.VersionTrained(
                answer.version, waited=self.beat_number % 2 == 0, weights_digest=self.digest if answer.catch_up else None
            )
        )

    # --- commands -----------------------------------------------------------------------------------------------------------

    def on(self, event: de.Event) -> None:
        self.do(self.core.on(event))
        self.core.state.validate()

    def do(self, commands: list[cmd.Command]) -> None:
        for command in commands:
            self.obey(command)
        state = self.changes.take()
        if state is not None:
            self.publish(state)

    def obey(self, command: cmd.Command) -> None:
        match command:
            case cmd.SendRequest(request, partition):
                self.world.check_request(request, self.core)
                self.world.logs.append(REQUESTS, request, partition)
            case cmd.MakeTopic(kind, version):
                self.jobs.append(lambda: self.make_topic(kind, version))
            case cmd.CloseTopic(kind, version):
                for closed in [place for place in self.reader.positions if place[0] == (kind, version)]:
                    del self.reader.positions[closed]
            case cmd.WriteSeal(seal):
                self.fence()
                assert seal.version not in self.seals_written, "one learner seals a version once"
                self.seals_written.add(seal.version)
                self.world.logs.append(("rollout", seal.version), seal, 0)
            case cmd.ReadPast(beat):
                self.jobs.append(lambda: self.start_read_past(beat))
            case messages.StartRefit():
                self.fence()
                self.answer = command
            case cmd.HandOverBatch() | messages.FinishRun() | messages.EndRun():
                self.answer = command
            case cmd.ValidationDone(version, rewards, _, missing):
                assert len(rewards) + missing == self.world.dataset.validation_rows, command
                self.world.validated.setdefault(version, []).append(missing)
            case cmd.Note():
                pass

    def publish(self, state: State) -> None:
        self.world.check_state(state)
        self.world.logs.append(CONTROL, state)

    def make_topic(self, kind: Kind, version: int) -> None:
        self.world.logs.make((kind, version), self.world.settings.partitions)
        self.topic_ready(kind, version)

    def topic_ready(self, kind: Kind, version: int) -> None:
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
