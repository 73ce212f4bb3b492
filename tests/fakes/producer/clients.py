"""A producer's Kafka clients without a broker: what it writes is kept, what it reads is handed to it by the test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from broker_config.clients.admin import LogBounds
from broker_config.clients.reader import Partition, Record, Sink
from broker_config.deadline import Deadline
from schemas.errors import BrokerError
from schemas.records.headers import Headers, as_mapping
from schemas.records.json_record import JsonRecord


@dataclass(frozen=True)
class Written:
    """A record that the producer wrote."""

    topic: str
    partition: int
    key: str | None
    value: bytes
    headers: Headers | None


@dataclass
class FakeClients:
    """All of a producer's clients in one. Deliveries succeed at once, or fail with `refuses`."""

    topics: set[str] = field(default_factory=set)
    ends: dict[Partition, LogBounds] = field(default_factory=dict)
    refuses: BrokerError | None = None
    written: queue.SimpleQueue[Written] = field(default_factory=queue.SimpleQueue)
    assigned: dict[Partition, int] = field(default_factory=dict)
    asked: threading.Event = field(default_factory=threading.Event)
    """The producer has looked whether the topics are there."""
    reading: threading.Event = field(default_factory=threading.Event)
    """The producer has been assigned its first partition."""
    sink: Sink | None = None
    failed: Callable[[BaseException], None] | None = None
    closed: list[str] = field(default_factory=list)

    def writer(self, failed: Callable[[BaseException], None]) -> FakeWriter:
        self.failed = failed
        return FakeWriter(self)

    def reader(self, sink: Sink) -> FakeReader:
        self.sink = sink
        return FakeReader(self)

    def admin(self) -> FakeClients:
        return self

    def ready(self, topics: Collection[str]) -> bool:
        self.asked.set()
        return set(topics) <= self.topics

    def bounds(self, partitions: Collection[Partition]) -> Mapping[Partition, LogBounds]:
        missing = {topic for topic, _ in partitions} - self.topics
        if missing:
            raise BrokerError(f"there is no topic {missing}")
        return {partition: self.ends.get(partition, LogBounds(0, 0)) for partition in partitions}

    def deliver(self, topic: str, record: JsonRecord, offset: int = 0) -> None:
        """The producer reads this record next."""
        assert self.sink is not None
        self.sink(Record(topic, 0, offset, None, record.to_bytes(), as_mapping([]), 0))


@dataclass
class FakeWriter:
    clients: FakeClients

    def write(
        self, topic: str, value: bytes, *, key: str | None = None, headers: Headers | None = None, partition: int = 0
    ) -> Future[int]:
        future: Future[int] = Future()
        if self.clients.refuses is not None:
            future.set_exception(self.clients.refuses)
        else:
            self.clients.written.put(Written(topic, partition, key, value, headers))
            future.set_result(0)
        return future

    def post(self, topic: str, value: bytes, **how: Any) -> None:
        error = self.write(topic, value, **how).exception()
        if error is not None:
            assert self.clients.failed is not None
            self.clients.failed(error)

    def close(self, deadline: Deadline) -> None:
        self.clients.closed.append("writer")


@dataclass
class FakeReader:
    clients: FakeClients

    def assign(self, offsets: Iterable[tuple[Partition, int]]) -> None:
        self.clients.assigned.update(offsets)
        self.clients.reading.set()

    def close(self) -> None:
        self.clients.closed.append("reader")
