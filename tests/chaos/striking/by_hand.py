"""A run whose learner and producers a test starts one by one, as people do on several machines, and what its topics tell.

All processes are those that people start; what a test does to them it does by signals, by failpoints, or by writing records.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, overload

import psutil
from confluent_kafka import TopicPartition

from broker_config.clients import admin
from broker_config.clients.errors import data_of
from broker_config.clients.reader import LogReader, Record
from broker_config.clients.settings import make_admin, make_consumer, make_producer
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from launch.models.recipes import is_model
from schemas import failpoints
from schemas.config.kafka import KafkaConfig
from schemas.errors import RecordRefused
from schemas.records import control, status
from schemas.records import seal as seals
from schemas.records.control import State
from schemas.records.group import TrajectoryGroup, decode
from schemas.records.headers import Headers, as_mapping
from schemas.records.seal import Seal
from schemas.records.status import Beat, Heartbeat, Operator
from tests.fakes.nursery import Forked, Nursery
from tests.paths import ROOT
from tests.pipeline import environment, new_id
from tests.support import eventually

START_S = 120.0  # a learner imports torch and megatron: seconds alone, a minute on a machine with other work
END_S = 60.0
MODEL_S = 300.0
KAFKA = KafkaConfig()
CONFIG = "launch/configs/tiny.yaml"
LEARNER = "learner"
T = TypeVar("T")


class Part:
    """One process of the run: its name, its output, and how it ends."""

    def __init__(self, name: str, process: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.awaited = False
        """Its end was waited for, so it is no surprise."""

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def frozen(self) -> bool:
        return is_frozen(self.process.pid)

    def send(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def end(self, within_s: float = END_S) -> int:
        """The exit code, once it has ended by itself."""
        self.awaited = True
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {within_s:g} s:\n{self.output[-4000:]}") from None

    def tree(self) -> list[psutil.Process]:
        """It and all processes under it."""
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]

    def kill(self) -> None:
        """Whatever it does, it and all under it are gone afterwards."""
        if self.alive:
            for process in reversed(self.tree()):
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
        self.process.wait(END_S)


def is_frozen(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True, slots=True)
class Told:
    """A decoded record and when the broker got it, in seconds."""

    at: float
    record: Any


@dataclass(slots=True)
class Watched:
    """`control` and `status` so far, in order; `garbage` counts records that are none."""

    states: list[Told] = field(default_factory=list)
    status: list[Told] = field(default_factory=list)
    garbage: int = 0


class ByHand:
    """One run. `overrides` are those of all its processes."""

    def __init__(self, bootstrap: str, folder: Path, nursery: Nursery, *overrides: str) -> None:
        self.bootstrap = bootstrap
        self._nursery = nursery
        self.folder = folder
        self.id = new_id()
        self.topics = Topics(self.id)
        self.overrides = (f"run.id={self.id}", f"run.dir={folder}", *overrides)
        self.parts: list[Part] = []
        self._lock = threading.Lock()
        self._watched = Watched()
        self._failure: BaseException | None = None
        self._reader: LogReader | None = None
        self._client = make_admin(KAFKA, bootstrap, "tests")
        self._producer = make_producer(KAFKA, bootstrap, "tests")

    # --- processes ----------------------------------------------------------------------------------------------------------

    def learner(self, *overrides: str, resume: bool = False) -> Part:
        """A learner of one process, without torchrun."""
        arguments = ["--config", CONFIG, *(["--resume"] if resume else []), *self.overrides, *overrides]
        return self._start(LEARNER, lambda log: self._nursery.start("learner.__main__", arguments, self._env(), log))

    def learner_of_two(self, *overrides: str, resume: bool = False, env: Mapping[str, str] | None = None) -> Part:
        """Two ranks under torchrun, as `launch/run_cluster.sh` starts them."""
        torchrun = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
        learner = ["-m", "learner", "--config", CONFIG, *(["--resume"] if resume else []), "learner.nproc=2"]
        arguments, environment = [*torchrun, *learner, *self.overrides, *overrides], self._env(env or {})
        return self._start(LEARNER, lambda log: self._nursery.start("launch.processes.torchrun", arguments, environment, log))

    def producer(self, name: str, *overrides: str, strike: str = "", env: Mapping[str, str] | None = None) -> Part:
        """`strike`: as in WEIR_FAILPOINTS."""
        arguments = ["--config", CONFIG, "--name", name, *self.overrides, *overrides]
        environment = self._env({failpoints.VARIABLE: strike} if strike else {}, env or {})
        return self._start(name, lambda log: self._nursery.start("producer.__main__", arguments, environment, log))

    def vllm_producer(self, name: str, *overrides: str) -> Part:
        """One whose engine is real; vLLM is imported by itself."""
        command = ["-m", "producer", "--config", CONFIG, "--name", name, *self.overrides, *overrides]
        return self._start(name, lambda log: self._program(command, log))

    def _env(self, *more: Mapping[str, str]) -> dict[str, str]:
        env = environment(self.bootstrap)
        for changes in more:
            env.update(changes)
        return env

    def _program(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=self._env(), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _start(self, name: str, make: Callable[[Path], subprocess.Popen[bytes] | Forked]) -> Part:
        log = self.folder / f"{name}.{sum(part.name == name for part in self.parts)}.out"
        part = Part(name, make(log), log)
        self.parts.append(part)
        return part

    def close(self) -> None:
        for part in self.parts:
            part.kill()
        if self._reader is not None:
            self._reader.close()

    def story(self) -> str:
        """The end of every process's output, for a failed test."""
        logs = [part.log for part in self.parts] + sorted(self.folder.glob("*/logs/dispatcher.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in dict.fromkeys(logs))

    # --- what the topics tell, as it comes --------------------------------------------------------------------------------------

    def watch(self, within_s: float = START_S) -> None:
        """Follow `control` and `status` from now on; waits until the learner has made them."""
        wanted = {self.topics.control, self.topics.status, self.topics.quarantine, self.topics.metrics}
        self.until(lambda: wanted <= admin.describe(self._client, wanted, Deadline(30)).keys(), within_s, "the run's topics")
        self._reader = LogReader(KAFKA, self.bootstrap, "tests", "tests", self._take)
        self._reader.assign([((self.topics.control, 0), 0), ((self.topics.status, 0), 0)])

    def _take(self, item: Record | BaseException) -> None:
        with self._lock:
            if isinstance(item, BaseException):
                self._failure = item
                return
            at = item.timestamp_ms / 1000
            try:
                if item.topic == self.topics.status:
                    self._watched.status.append(Told(at, status.decode(item.value)))
                elif isinstance(record := control.decode(item.value), State):
                    self._watched.states.append(Told(at, record))
            except RecordRefused:
                self._watched.garbage += 1

    @property
    def states(self) -> list[Told]:
        with self._lock:
            assert self._failure is None, self._failure
            return list(self._watched.states)

    @property
    def status(self) -> list[Told]:
        with self._lock:
            assert self._failure is None, self._failure
            return list(self._watched.status)

    @property
    def state(self) -> State | None:
        """The newest one."""
        states = self.states
        return states[-1].record if states else None

    @property
    def frontier(self) -> int:
        """F; -1 before the first refit."""
        state = self.state
        return -1 if state is None or state.frontier is None else state.frontier

    def beat(self) -> Beat | None:
        return next((told.record for told in reversed(self.status) if isinstance(told.record, Beat)), None)

    def identity(self, name: str) -> str | None:
        """Of the newest start of `name` that has said anything."""
        told = (t.record for t in reversed(self.status) if not isinstance(t.record, Beat))
        names = (getattr(record, "producer", None) or "" for record in told)
        return next((found for found in names if found.rpartition("-")[0] == name), None)

    def is_member(self, name: str) -> bool:
        identity, state = self.identity(name), self.state
        return identity is not None and state is not None and identity in state.members

    def holds(self, name: str) -> int:
        """The version that the learner takes `name` to have; -1 for none."""
        identity, state = self.identity(name), self.state
        member = state.members.get(identity or "") if state is not None else None
        return -1 if member is None else member.held

    def heartbeat(self, name: str) -> Heartbeat | None:
        identity = self.identity(name)
        told = (t.record for t in reversed(self.status) if isinstance(t.record, Heartbeat))
        return next((record for record in told if record.producer == identity), None)

    def until(self, condition: Callable[[], T | None], within_s: float, what: str) -> T:
        """`eventually`, that ends early when a learner has died meanwhile."""

        def asked() -> T | None:
            answer = condition()
            if answer:
                return answer
            dead = [part for part in self.parts if part.name == LEARNER and not part.alive and not part.awaited]
            if dead:
                raise RuntimeError(f"the learner ended (code {dead[0].process.poll()}) while the test waited for {what}")
            return None

        return eventually(asked, within_s, what)

    def reaches(self, version: int, within_s: float) -> None:
        self.until(lambda: self.frontier >= version, within_s, f"version {version}")

    # --- what a test says itself ------------------------------------------------------------------------------------------------

    @property
    def uuid(self) -> str:
        state = self.state
        assert state is not None, "the learner has not told the run's uuid yet"
        return state.uuid

    def write(self, topic: str, value: bytes, key: str | None = None, headers: Headers | None = None) -> None:
        """A record that none of the run's processes wrote; returns when the broker has it."""
        failed: list[object] = []
        self._producer.produce(
            topic,
            value=value,
            key=key,
            headers=headers,
            partition=0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        assert self._producer.flush(30) == 0, f"a record for {topic} was not written within 30 s"
        assert failed == []

    def stop(self) -> None:
        """What `weir stop` writes."""
        self.write(self.topics.status, Operator(uuid=self.uuid, action="stop", by="a test").to_bytes())

    # --- what lies there --------------------------------------------------------------------------------------------------------

    def records(self, topics: Sequence[str], within_s: float = 60.0) -> dict[str, list[Any]]:
        """All records of partition 0 of these topics, up to their present ends."""
        deadline = Deadline(within_s)
        bounds = admin.log_bounds(self._client, [(topic, 0) for topic in topics], deadline)
        found: dict[str, list[Any]] = {topic: [] for topic in topics}
        consumer = make_consumer(KAFKA, self.bootstrap, "tests", "tests")
        try:
            consumer.assign([TopicPartition(topic, 0, bounds[topic, 0].start) for topic in topics])
            at = {topic: bounds[topic, 0].start for topic in topics}
            while any(at[topic] < bounds[topic, 0].end for topic in topics):
                message = data_of(consumer.poll(0.5))
                if message is None:
                    deadline.check(f"records of {len(topics)} topics")
                    continue
                found[message.topic()].append(message)
                at[message.topic()] = message.offset() + 1
        finally:
            consumer.close()
        return found

    def versions(self, count: int, prompts_per_step: int) -> list[Version]:
        """Versions 0 to count - 1 as they lie in their topics."""
        names = [self.topics.trajectories(version) for version in range(count)]
        found = self.records(names)
        uuid = self.states[-1].record.uuid
        return [Version.of(version, found[name], uuid, prompts_per_step) for version, name in enumerate(names)]


@dataclass(frozen=True, slots=True)
class Version:
    """The topic of one version: well-formed groups by offset with the time of each, its seal."""

    number: int
    groups: dict[int, TrajectoryGroup]
    times: dict[int, float]
    seal: Seal

    @classmethod
    def of(cls, number: int, records: Sequence[Any], uuid: str, prompts_per_step: int) -> Version:
        groups, times, sealed = {}, {}, []
        for record in records:
            if as_mapping(record.headers()).get("kind") == b"seal":
                sealed.append(seals.decode(record.value(), run=uuid, version=number, prompts_per_step=prompts_per_step))
                continue
            try:
                groups[record.offset()] = decode(record.value())
            except RecordRefused:
                continue  # written by a test
            times[record.offset()] = record.timestamp()[1] / 1000
        assert sealed, f"version {number} was trained without a seal"
        return cls(number, groups, times, sealed[0])

    def trained(self) -> dict[int, TrajectoryGroup]:
        """The batch, by slot."""
        return {slot: self.groups[entry.offset] for slot, entry in self.seal.slots.items()}


def make_tiny_model() -> None:
    """The model of `launch/configs/tiny.yaml`, which the learner alone does not make."""
    path = ROOT / ".cache/models/tiny"
    if not is_model(path):
        subprocess.run(
            [sys.executable, "-m", "launch.models", "tiny", str(path)],
            cwd=ROOT, env=environment(""), check=True, capture_output=True, timeout=MODEL_S,
        )  # fmt: skip


R = TypeVar("R", bound=ByHand)


@overload
def by_hand(bootstrap: str, folder: Path, nursery: Nursery, *overrides: str) -> AbstractContextManager[ByHand]: ...


@overload
def by_hand(bootstrap: str, folder: Path, nursery: Nursery, *overrides: str, kind: type[R]) -> AbstractContextManager[R]: ...


@contextmanager
def by_hand(bootstrap: str, folder: Path, nursery: Nursery, *overrides: str, kind: type[Any] = ByHand) -> Iterator[Any]:
    """A run; none of its processes is left, and what they wrote is shown when the test fails."""
    make_tiny_model()
    folder.mkdir(parents=True, exist_ok=True)
    run = kind(bootstrap, folder, nursery, *overrides)
    try:
        yield run
    except BaseException:
        print(run.story())
        raise
    finally:
        run.close()
