"""Writing records as they were to an empty topic, by a producer's `produce`, as fast as it takes them.

Invariants: every delivery report is checked; a full queue is waited for, as long as the broker takes something at least every
`patience_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message

from broker_config.clients.errors import broker_error, explain
from broker_config.clients.stored import StoredRecord
from broker_config.deadline import Deadline
from schemas.errors import BrokerError

POLL_S = 0.1


class ProducerClient(Protocol):
    """The part of `confluent_kafka.Producer` that is used."""

    def produce(self, topic: str, **record: Any) -> None: ...

    def poll(self, timeout: float) -> int: ...

    def __len__(self) -> int: ...


class TopicRefill:
    """Fills one topic."""

    def __init__(self, producer: ProducerClient, topic: str, patience_s: float, *, same_offsets: bool) -> None:
        self._producer = producer
        self._topic = topic
        self._patience_s = patience_s
        self._same_offsets = same_offsets
        self._failed: list[str] = []

    def write(self, records: Iterable[StoredRecord]) -> None:
        """Write records in order; with `same_offsets`, each must get the offset that it had.

        Raises:
            BrokerError: a record was refused, or got another offset. DeadlineExceeded: the broker no longer takes any.
        """
        for record in records:
            while not self._queue(record):
                self._wait()
            self._producer.poll(0)
            self._check()
        while len(self._producer):
            self._wait()
        self._check()

    def _queue(self, record: StoredRecord) -> bool:
        """Returns whether there was room for it."""
        try:
            self._producer.produce(
                self._topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                on_delivery=self._report(record),
            )
        except BufferError:
            return False
        except KafkaException as error:
            raise broker_error(f"writing {record.where} to {self._topic}", error) from error
        return True

    def _wait(self) -> None:
        """Wait until the broker has taken something."""
        deadline, left = Deadline(self._patience_s), len(self._producer)
        while len(self._producer) >= left:
            self._producer.poll(min(POLL_S, deadline.remaining()))
            if len(self._producer) >= left:
                deadline.check(f"the broker to take one of {left} records of {self._topic}; is it up?")

    def _report(self, record: StoredRecord) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            where = f"{self._topic}[{record.partition}]"
            if error is not None:
                self._failed.append(f"{where} offset {record.offset}: {explain(error)}")
            elif self._same_offsets and message.offset() != record.offset:
                self._failed.append(f"{where}: offset {record.offset} became {message.offset()}")

        return delivered

    def _check(self) -> None:
        if self._failed:
            raise BrokerError(f"{self._topic} could not be filled: {self._failed[0]}; is somebody else writing to it?")
