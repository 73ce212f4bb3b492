"""Whole topics as they are stored: every record with its bytes, from the first offset to a given end of the log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, Message

from broker_config.clients.consuming import assign
from broker_config.clients.errors import data_of
from broker_config.clients.reader import Partition, Record
from broker_config.deadline import Deadline
from schemas.errors import DeadlineExceeded
from schemas.records.headers import as_mapping

POLL_S = 0.2
SILENCE_S = 20.0

Bounds = Mapping[Partition, tuple[int, int]]
"""The first offset and the next offset of partitions."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record with nothing decoded. `timestamp_ms` is the broker's (log append time)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def where(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}"

    def header(self, name: str) -> bytes | None:
        """The first header of that name."""
        return next((value for found, value in self.headers if found == name), None)

    def decoded(self) -> Record:
        return Record(
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
            key=None if self.key is None else self.key.decode("utf-8", "replace"),
            value=self.value or b"",
            headers=as_mapping(self.headers),
            timestamp_ms=self.timestamp_ms,
        )


def of_message(message: Message) -> StoredRecord:
    key, headers = message.key(), message.headers()
    return StoredRecord(
        topic=str(message.topic()),
        partition=int(message.partition() or 0),
        offset=int(message.offset() or 0),
        timestamp_ms=int(message.timestamp()[1]),
        key=key.encode() if isinstance(key, str) else key,
        value=message.value(),
        headers=tuple(headers or ()),
    )


def read_to_end(consumer: Consumer, bounds: Bounds, deadline: Deadline) -> Iterator[StoredRecord]:
    """All records within `bounds`, each partition in its own order. `deadline` limits the look-up of the topics.

    Raises:
        DeadlineExceeded: the broker sends nothing for `SILENCE_S` although there is more.
        BrokerError: a topic cannot be read.
    """
    left = {where: end for where, (start, end) in bounds.items() if end > start}
    if not left:
        return
    assign(consumer, {where: bounds[where][0] for where in left}, deadline)
    last_record_at = time.monotonic()
    while left:
        message = data_of(consumer.poll(POLL_S))
        if message is None:
            # The last offsets of a log may hold no record (a transaction's end, for example); the position shows that.
            for partition in consumer.position(consumer.assignment()):
                end = left.get((partition.topic, partition.partition))
                if end is not None and partition.offset >= end:
                    del left[(partition.topic, partition.partition)]
            if left and time.monotonic() - last_record_at > SILENCE_S:
                waiting = ", ".join(f"{topic}[{index}]" for topic, index in left)
                raise DeadlineExceeded(f"waited {SILENCE_S:g} s for the next record of {waiting}; is the broker up?")
            continue
        last_record_at = time.monotonic()
        record = of_message(message)
        where = (record.topic, record.partition)
        if where in left and record.offset < left[where]:
            yield record
            if record.offset + 1 >= left[where]:
                del left[where]
