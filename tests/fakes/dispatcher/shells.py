"""A dispatcher's shell without a broker: everything that it works with is kept in memory, for one test at a time."""

from __future__ import annotations

import queue
import socket
from concurrent.futures import Future
from typing import Any, cast

from broker_config.clients.reader import Record
from broker_config.topics import Topics
from learner.dispatcher.deciding.dispatcher import Dispatcher
from learner.dispatcher.serving.beats import Beats
from learner.dispatcher.serving.rank0 import Rank0
from learner.dispatcher.serving.shell import Collaborators, Item, Shell
from learner.dispatcher.serving.state_log import StateLog
from learner.dispatcher.takeover.claim import Claimed
from learner.link.channel import Answers, Link
from schemas.config.config import Config
from schemas.records.metrics import StepMetrics
from tests.fakes.dispatcher.plans import make_plan
from tests.fakes.records.make import UUID


class MemoryWriter:
    """What was written, in order: (topic, key, value). Everything is acknowledged at once."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str | None, bytes]] = []

    def post(self, topic: str, value: bytes, *, key: str | None = None, **_: Any) -> None:
        self.written.append((topic, key, value))

    def write(self, topic: str, value: bytes, *, key: str | None = None, **_: Any) -> Future[int]:
        self.post(topic, value, key=key)
        done: Future[int] = Future()
        done.set_result(len(self.written) - 1)
        return done

    def judge(self, future: Future[int]) -> None:
        future.result()

    def flush(self, deadline: Any) -> None:
        pass

    def of(self, topic: str) -> list[bytes]:
        return [value for name, _, value in self.written if name == topic]


class MemoryReader:
    """`positions` is what the test says."""

    def __init__(self) -> None:
        self.at: dict[tuple[str, int], int] = {}

    def assign(self, partitions: list[tuple[tuple[str, int], int]]) -> None:
        self.at |= dict(partitions)

    def unassign(self, partitions: list[tuple[str, int]]) -> None:
        for partition in partitions:
            self.at.pop(partition, None)

    def positions(self) -> dict[tuple[str, int], int]:
        return dict(self.at)


class MemoryControl:
    """`lower_wrote` is what the next `fence` answers; `newer` is raised by it."""

    def __init__(self) -> None:
        self.position, self.state_offset = 40, 30
        self.lower_wrote = False
        self.newer: Exception | None = None
        self.fences = 0

    def fence(self, incarnation: int) -> bool:
        self.fences += 1
        if self.newer is not None:
            raise self.newer
        wrote, self.lower_wrote = self.lower_wrote, False
        return wrote


class MemoryVersions:
    """Topics of versions; `left` names those that are not read any more."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.left: list[str] = []

    def name(self, kind: str, version: int) -> str:
        return self._topics.trajectories(version) if kind == "rollout" else self._topics.validation(version)

    def make(self, kind: str, version: int) -> str:
        return f"id-{kind}-{version}"

    def read(self, kind: str, version: int) -> None:
        pass

    def leave(self, kind: str, version: int) -> None:
        self.left.append(self.name(kind, version))

    def left_by_others(self, first: int) -> list[int]:
        return []

    def ends(self) -> dict[tuple[str, int], int]:
        return {}


class Retired:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def retire(self, oldest: int, offsets: Any, requests: Any, last_state: int) -> None:
        self.calls.append((oldest, last_state))


class MemoryShell:
    """A shell with its collaborators at hand. `rank0` and `rank0_saves` are rank 0's ends of the links."""

    def __init__(self, config: Config, *, recorded: dict[int, StepMetrics] | None = None, now: float = 0.0) -> None:
        self.now = now
        self.topics = Topics(config.run_id)
        self.inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.writer, self.reader, self.control = MemoryWriter(), MemoryReader(), MemoryControl()
        self.versions, self.retired = MemoryVersions(self.topics), Retired()
        loop, saves = socket.socketpair(), socket.socketpair()
        self.rank0, self.rank0_saves = Link(loop[0], 20), Link(saves[0], 20)
        self._theirs = [Link(loop[1]), Link(saves[1])]
        rank0 = Rank0(Answers(self._theirs[0]), Answers(self._theirs[1]), clock=lambda: self.now)
        self.core = Dispatcher(make_plan(), 0)
        self.states = StateLog(cast(Any, self.writer), self.topics.control, self.core.state, clock=lambda: self.now)
        collaborators = Collaborators(
            writer=cast(Any, self.writer),
            reader=cast(Any, self.reader),
            control=cast(Any, self.control),
            versions=cast(Any, self.versions),
            client=cast(Any, None),
            rank0=rank0,
            states=self.states,
            retention=cast(Any, self.retired),
            beats=Beats(1.0, 60.0, clock=lambda: self.now),
            rank_watch=cast(Any, None),
            watchdog=cast(Any, None),
        )
        self.shell = Shell(
            config,
            "nowhere:1",
            Claimed(UUID, 0, None, 0),
            self.core,
            self.inbox,
            collaborators,
            vocab_size=100,
            recorded=recorded or {},
        )
        rank0.listen(self.inbox.put)

    def turn(self) -> None:
        """Handle the next item of the inbox, as the loop does."""
        self.shell._take(self.inbox.get(timeout=20))

    def status(self, value: bytes, offset: int = 0) -> None:
        self.shell._take(Record(self.topics.status, 0, offset, None, value, {}, 0))

    def close(self) -> None:
        for link in (self.rank0, self.rank0_saves, *self._theirs):
            link.close()
