"""Reading logs: one thread owns one consumer and hands every record to its sink, in the order of each partition.

Invariants: partitions are assigned with explicit offsets, never subscribed; the first record of a partition is at or above the
offset asked for, and offsets only grow from there; an error of the broker or the client reaches the sink once, as the last thing.
librdkafka never forgets a topic, so the consumer is renewed after `RENEW_AFTER` topics.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition

from broker_config.clients.consuming import look_up
from broker_config.clients.errors import broker_error, data_of
from broker_config.clients.patience import NotYet, ask_patiently
from broker_config.clients.settings import make_consumer
from broker_config.deadline import Deadline
from schemas.config.kafka import KafkaConfig
from schemas.errors import BrokerError, DeadlineExceeded
from schemas.records.headers import as_mapping

ASK_S = 5.0  # one question to the broker; asked again while an outage lasts
POLL_S = 0.05  # a new assignment waits at most this long; a record ends the wait at once
RENEW_AFTER = 64  # topics

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log. `timestamp_ms` is the broker's (log append time)."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes
    headers: dict[str, bytes]
    timestamp_ms: int


Sink = Callable[[Record | BaseException], None]


class LogReader:
    """`assign` and `unassign` may be called from any thread; `sink` is called on the reader's own thread."""

    def __init__(self, kafka: KafkaConfig, bootstrap: str, name: str, group_id: str, sink: Sink) -> None:
        self._make: Callable[[], Consumer] = lambda: make_consumer(kafka, bootstrap, name, group_id)
        self._outage_s = kafka.outage_timeout_s
        self._sink = sink
        self._changes: queue.SimpleQueue[tuple[list[tuple[Partition, int]], list[Partition]]] = queue.SimpleQueue()
        self._positions: dict[Partition, int] = {}
        self._seen_topics: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-reader", daemon=True)
        self._thread.start()

    def assign(self, offsets: Iterable[tuple[Partition, int]]) -> None:
        """Read these partitions as well, each from its offset. The topics must be visible already."""
        self._changes.put((list(offsets), []))

    def unassign(self, partitions: Iterable[Partition]) -> None:
        self._changes.put(([], list(partitions)))

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition: all records below it have been handed to the sink."""
        return dict(self._positions)

    def close(self) -> None:
        """Stop reading; returns when the thread has ended."""
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            consumer = self._make()
            try:
                while not self._stop.is_set():
                    consumer = self._apply_changes(consumer)
                    self._read(consumer)
            finally:
                consumer.close()
        except KafkaException as error:
            self._sink(broker_error("reading", error))
        except Exception as error:  # noqa: BLE001 - top of a thread: whatever it is, the owner must hear of it
            self._sink(error)

    def _read(self, consumer: Consumer) -> None:
        message = data_of(consumer.poll(POLL_S))
        if message is None:
            return
        at = (str(message.topic()), int(message.partition() or 0))
        offset = int(message.offset() or 0)
        expected = self._positions.get(at)
        if expected is None:
            return  # a record that was fetched before its partition was unassigned
        if offset < expected:
            raise BrokerError(f"{at[0]}[{at[1]}] went back to offset {offset}, expected {expected} or later")
        key = message.key()
        record = Record(
            topic=at[0],
            partition=at[1],
            offset=offset,
            key=key.decode("utf-8", "replace") if isinstance(key, bytes) else key,
            value=message.value() or b"",
            headers=as_mapping(message.headers()),
            timestamp_ms=int(message.timestamp()[1]),
        )
        self._sink(record)
        self._positions[at] = offset + 1

    def _apply_changes(self, consumer: Consumer) -> Consumer:
        while not self._changes.empty():
            added, removed = self._changes.get()
            gone = [p for p in removed if p in self._positions]
            for partition in gone:
                del self._positions[partition]
            if gone:
                consumer.incremental_unassign([TopicPartition(*p) for p in gone])
            fresh = [(p, offset) for p, offset in added if p not in self._positions]
            self._positions.update(fresh)
            self._seen_topics.update(topic for (topic, _), _ in fresh)
            if len(self._seen_topics) > RENEW_AFTER:
                consumer = self._renew(consumer)
            elif fresh:
                self._look_up(consumer, {topic for (topic, _), _ in fresh})
                consumer.incremental_assign([TopicPartition(*p, offset) for p, offset in fresh])
        return consumer

    def _look_up(self, consumer: Consumer, topics: set[str]) -> None:
        """An outage of the broker is waited out, as everywhere in a run; `close` ends the wait."""
        deadline = Deadline(self._outage_s)

        def ask(topic: str) -> None:
            if self._stop.is_set():
                return
            try:
                look_up(consumer, topic, deadline.at_most(ASK_S))
            except DeadlineExceeded as error:
                raise NotYet(f"the broker to look up topic {topic} (kafka.outage_timeout_s)", pause_s=0.0) from error

        for topic in sorted(topics):
            ask_patiently(partial(ask, topic), deadline)

    def _renew(self, consumer: Consumer) -> Consumer:
        consumer.close()
        renewed = self._make()
        self._look_up(renewed, {topic for topic, _ in self._positions})
        renewed.assign([TopicPartition(*p, offset) for p, offset in self._positions.items()])
        self._seen_topics = {topic for topic, _ in self._positions}
        return renewed
