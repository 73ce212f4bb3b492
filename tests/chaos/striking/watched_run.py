"""A run as its topics show it, to a test that follows them while they grow and reads them when the run is over.

Invariant: a record is taken once, in the order of its topic; a reader that failed fails the next question.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from broker_config.clients import admin
from broker_config.clients.reader import LogReader, Record
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline
from broker_config.topics import Topics
from schemas.config.kafka import KafkaConfig
from schemas.errors import RecordRefused
from schemas.records import control, status
from schemas.records.control import State
from schemas.records.status import Beat, Heartbeat
from tests.chaos.striking.version import Version
from tests.support import eventually, new_id
from tests.topic_contents import read_topics

START_S = 120.0  # a learner imports torch and megatron: seconds alone, a minute on a machine with other work
KAFKA = KafkaConfig()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timed:
    """A decoded record and when the broker got it, in seconds."""

    at: float
    record: Any


@dataclass(slots=True)
class Watched:
    """`control` and `status` so far, in order; `garbage` counts records that are none."""

    states: list[Timed] = field(default_factory=list)
    status: list[Timed] = field(default_factory=list)
    garbage: int = 0


class WatchedRun:
    """One run and its id."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.id = new_id()
        self.topics = Topics(self.id)
        self._lock = threading.Lock()
        self._watched = Watched()
        self._failure: BaseException | None = None
        self._reader: LogReader | None = None
        self._client = make_admin(KAFKA, bootstrap, "tests")

    def until(self, condition: Callable[[], T | None], within_s: float, what: str) -> T:
        """`eventually`, which fails at once when `what` cannot come any more."""

        def asked() -> T | None:
            answer = condition()
            if not answer:
                self._check_hope(what)
            return answer

        return eventually(asked, within_s, what)

    def _check_hope(self, what: str) -> None:
        """
        Raises:
            RuntimeError: nobody is left who could bring it about.
        """

    # --- while it runs ------------------------------------------------------------------------------------------------------

    def watch(self, within_s: float = START_S) -> None:
        """Follow `control` and `status` from now on; waits until the learner has made them."""
        wanted = {self.topics.control, self.topics.status, self.topics.quarantine, self.topics.metrics}
        self.until(lambda: wanted <= admin.describe(self._client, wanted, Deadline(30)).keys(), within_s, "the run's topics")
        self._reader = LogReader(KAFKA, self.bootstrap, "tests", "tests", self._take)
        self._reader.assign([((self.topics.control, 0), 0), ((self.topics.status, 0), 0)])

    def unwatch(self) -> None:
        """Forget what was read; `watch` begins anew."""
        if self._reader is not None:
            self._reader.close()
        self._reader, self._watched = None, Watched()

    def _take(self, item: Record | BaseException) -> None:
        with self._lock:
            if isinstance(item, BaseException):
                self._failure = item
                return
            at = item.timestamp_ms / 1000
            try:
                if item.topic == self.topics.status:
                    self._watched.status.append(Timed(at, status.decode(item.value)))
                elif isinstance(record := control.decode(item.value), State):
                    self._watched.states.append(Timed(at, record))
            except RecordRefused:
                self._watched.garbage += 1

    @property
    def states(self) -> list[Timed]:
        with self._lock:
            assert self._failure is None, self._failure
            return list(self._watched.states)

    @property
    def status(self) -> list[Timed]:
        with self._lock:
            assert self._failure is None, self._failure
            return list(self._watched.status)

    @property
    def state(self) -> State | None:
        """The newest one."""
        states = self.states
        return states[-1].record if states else None

    @property
    def uuid(self) -> str:
        state = self.state
        assert state is not None, "the learner has not published the run's uuid yet"
        return state.uuid

    @property
    def frontier(self) -> int:
        """F; -1 before the first refit."""
        state = self.state
        return -1 if state is None or state.frontier is None else state.frontier

    def reaches(self, version: int, within_s: float) -> None:
        self.until(lambda: self.frontier >= version, within_s, f"version {version}")

    def beat(self) -> Beat | None:
        return next((timed.record for timed in reversed(self.status) if isinstance(timed.record, Beat)), None)

    def identity(self, name: str) -> str | None:
        """Of the newest start of `name` that has reported anything."""
        records = (timed.record for timed in reversed(self.status) if not isinstance(timed.record, Beat))
        names = (getattr(record, "producer", None) or "" for record in records)
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
        beats = (timed.record for timed in reversed(self.status) if isinstance(timed.record, Heartbeat))
        return next((record for record in beats if record.producer == identity), None)

    # --- what lies there ----------------------------------------------------------------------------------------------------

    def records(self, topics: Sequence[str]) -> dict[str, list[Any]]:
        """All records of partition 0 of these topics, up to their present ends."""
        return read_topics(self.bootstrap, topics)

    def versions(self, count: int, prompts_per_step: int) -> list[Version]:
        """Versions 0 to count - 1 as they lie in their topics."""
        assert count > 0, "no version was trained"
        names = [self.topics.trajectories(version) for version in range(count)]
        found = self.records(names)
        return [Version.of(version, found[name], self.uuid, prompts_per_step) for version, name in enumerate(names)]
