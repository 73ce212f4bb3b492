"""Writing records to a topic again through a producer whose queue holds only so many bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from broker_config.clients.stored import StoredRecord
from launch.archive.refill import TopicRefill
from schemas.errors import BrokerError, DeadlineExceeded

TOPIC = "r.trajectories.v00000012"


class Sent:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class Queue:
    """Takes `room` bytes at a time; a poll that waits delivers one record, unless the broker is `away`."""

    def __init__(self, room: int = 10**9, *, away: bool = False, first_offset: int = 0, fails: set[int] | None = None) -> None:
        self.room, self.away = room, away
        self.written: list[tuple[int, bytes]] = []
        self._next = first_offset
        self._fails = fails or set()
        self._waiting: deque[tuple[int, bytes, Callable[..., None]]] = deque()

    def produce(self, topic: str, **record: Any) -> None:
        assert topic == TOPIC
        if sum(len(value) for _, value, _ in self._waiting) + len(record["value"]) > self.room:
            raise BufferError("Local: Queue full")
        self._waiting.append((record["partition"], record["value"], record["on_delivery"]))

    def poll(self, timeout: float) -> int:
        if self.away or not self._waiting or timeout == 0:
            return 0
        partition, value, report = self._waiting.popleft()
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED) if self._next in self._fails else None
        report(error, Sent(self._next))
        self.written.append((partition, value))
        self._next += 1
        return 1

    def __len__(self) -> int:
        return len(self._waiting)


def records(count: int, size: int = 100) -> list[StoredRecord]:
    return [StoredRecord(TOPIC, 0, offset, 1, b"k", bytes([offset]) * size) for offset in range(count)]


def refill(queue: Queue, count: int, *, patience_s: float = 5.0, same_offsets: bool = True) -> None:
    TopicRefill(queue, TOPIC, patience_s, same_offsets=same_offsets).write(records(count))


def test_more_bytes_than_the_queue_holds_are_written_in_their_order() -> None:
    queue = Queue(room=250)
    refill(queue, 20)
    assert [value[0] for _, value in queue.written] == list(range(20))


def test_a_broker_that_takes_nothing_is_not_waited_for_for_ever() -> None:
    with pytest.raises(DeadlineExceeded, match=r"the broker to take one of 2 records of r\.trajectories"):
        refill(Queue(room=250, away=True), 3, patience_s=0.2)
    with pytest.raises(DeadlineExceeded, match="the broker to take one of 3"):
        refill(Queue(away=True), 3, patience_s=0.2)


def test_an_offset_that_became_another_one_is_an_error_where_it_counts() -> None:
    with pytest.raises(BrokerError, match=r"could not be filled: .*\[0\]: offset 0 became 7"):
        refill(Queue(first_offset=7), 3)
    refill(Queue(first_offset=7), 3, same_offsets=False)


def test_a_record_that_the_broker_refuses_is_named() -> None:
    with pytest.raises(BrokerError, match=r"\[0\] offset 1: "):
        refill(Queue(fails={1}), 3)
