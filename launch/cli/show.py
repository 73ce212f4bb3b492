"""Reading topics for `weir show`: from their first record to where they ended, or on and on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from broker_config.clients import make_consumer
from broker_config.consuming import assign
from broker_config.deadline import Deadline
from broker_config.kafka_errors import data_of
from broker_config.reader import Record
from launch.cli.session import bounds_of
from schemas.config import KafkaConfig
from schemas.errors import DeadlineExceeded
from schemas.headers import as_mapping

POLL_S = 0.2
SILENCE_S = 20.0


def records(
    kafka: KafkaConfig, bootstrap: str, admin: AdminClient, names: Sequence[str], *, follow: bool, deadline: Deadline
) -> Iterator[Record]:
    """Records topic by topic; with `follow`, of all topics as they come, without end.

    Raises:
        DeadlineExceeded: the broker sends nothing for `SILENCE_S` though there is more.
        BrokerError: a topic cannot be read.
    """
    bounds = bounds_of(admin, names, deadline)
    consumer = make_consumer(kafka, bootstrap, "weir.show", "weir.show")
    try:
        if follow:
            yield from _following(consumer, {where: start for where, (start, _) in bounds.items()}, deadline)
        else:
            for name in names:
                mine = {where: found for where, found in bounds.items() if where[0] == name}
                yield from _until_end(consumer, mine, deadline)
    finally:
        consumer.close()


def _until_end(consumer: Consumer, bounds: dict[tuple[str, int], tuple[int, int]], deadline: Deadline) -> Iterator[Record]:
    left = {where: end for where, (start, end) in bounds.items() if end > start}
    if not left:
        return
    assign(consumer, {where: bounds[where][0] for where in left}, deadline)
    heard = time.monotonic()
    while left:
        message = data_of(consumer.poll(POLL_S))
        if message is None:
            # The last offsets of a log may hold no record (those of a transaction's end): the position tells.
            for partition in consumer.position(consumer.assignment()):
                end = left.get((partition.topic, partition.partition))
                if end is not None and partition.offset >= end:
                    del left[(partition.topic, partition.partition)]
            if left and time.monotonic() - heard > SILENCE_S:
                waiting = ", ".join(f"{topic}[{index}]" for topic, index in left)
                raise DeadlineExceeded(f"waited {SILENCE_S:g} s for the next record of {waiting}; is the broker up?")
            continue
        heard = time.monotonic()
        record = _record(message)
        where = (record.topic, record.partition)
        if where in left and record.offset < left[where]:
            yield record
            if record.offset + 1 >= left[where]:
                del left[where]


def _following(consumer: Consumer, starts: dict[tuple[str, int], int], deadline: Deadline) -> Iterator[Record]:
    assign(consumer, starts, deadline)
    while True:  # until the reader of this iterator ends it, or Ctrl-C
        message = data_of(consumer.poll(POLL_S))
        if message is not None:
            yield _record(message)


def _record(message: object) -> Record:
    from confluent_kafka import Message

    assert isinstance(message, Message)
    key = message.key()
    return Record(
        topic=str(message.topic()),
        partition=int(message.partition() or 0),
        offset=int(message.offset() or 0),
        key=key.decode("utf-8", "replace") if isinstance(key, bytes) else key,
        value=message.value() or b"",
        headers=as_mapping(message.headers()),
        timestamp_ms=int(message.timestamp()[1]),
    )
