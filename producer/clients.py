"""The Kafka clients of one producer. The shell and the heartbeat see protocols, so that tests run them without a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.admin import LogBounds
from broker_config.clients.reader import LogReader, Partition, Sink
from broker_config.clients.settings import make_admin
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from schemas.config.config import Config
from schemas.config.kafka import KafkaConfig
from schemas.records.headers import Headers


class Writer(Protocol):
    """What is used of `LogWriter`. Thread-safe."""

    def write(
        self, topic: str, value: bytes, *, key: str | None = None, headers: Headers | None = None, partition: int = 0
    ) -> Future[int]: ...

    def post(self, topic: str, value: bytes, **how: Any) -> None: ...

    def close(self, deadline: Deadline) -> None: ...


class Reader(Protocol):
    """What is used of `LogReader`."""

    def assign(self, offsets: Iterable[tuple[Partition, int]]) -> None: ...

    def close(self) -> None: ...


class Admin(Protocol):
    """Questions to the broker. Both block, and raise BrokerError or DeadlineExceeded."""

    def ready(self, topics: Collection[str]) -> bool:
        """Whether all of these topics exist, with a leader for every partition."""
        ...

    def bounds(self, partitions: Collection[Partition]) -> Mapping[Partition, LogBounds]: ...


class Clients(Protocol):
    """Makes the clients. `failed` and `sink` are called on the client's own thread."""

    def writer(self, failed: Callable[[BaseException], None]) -> Writer: ...

    def reader(self, sink: Sink) -> Reader: ...

    def admin(self) -> Admin: ...


@dataclass(frozen=True, slots=True)
class KafkaAdmin:
    """`Admin` of a broker; a question takes at most `kafka.timeout_s`."""

    kafka: KafkaConfig
    client: AdminClient

    def ready(self, topics: Collection[str]) -> bool:
        found = admin.describe(self.client, topics, Deadline(self.kafka.timeout_s))
        return set(topics) <= found.keys() and not any(info.leaderless for info in found.values())

    def bounds(self, partitions: Collection[Partition]) -> Mapping[Partition, LogBounds]:
        return admin.log_bounds(self.client, partitions, Deadline(self.kafka.timeout_s))


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """`Clients` of a broker, named after the run and the producer."""

    config: Config
    producer: str
    bootstrap: str

    def writer(self, failed: Callable[[BaseException], None]) -> LogWriter:
        return LogWriter(self.config.kafka, self.bootstrap, f"{self.config.run_id}.{self.producer}", failed)

    def reader(self, sink: Sink) -> LogReader:
        group_id = f"{self.config.run_id}.producer"
        return LogReader(self.config.kafka, self.bootstrap, f"{self.config.run_id}.{self.producer}", group_id, sink)

    def admin(self) -> KafkaAdmin:
        client_id = f"{self.config.run_id}.{self.producer}-admin"
        return KafkaAdmin(self.config.kafka, make_admin(self.config.kafka, self.bootstrap, client_id))
