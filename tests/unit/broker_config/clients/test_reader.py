"""A reader's look-up of new topics: an outage is waited out for `kafka.outage_timeout_s`, or until the reader is closed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker_config.clients import reader
from broker_config.clients.reader import LogReader, Record
from schemas.config.kafka import KafkaConfig
from schemas.errors import DeadlineExceeded

LIMIT_S = 20.0
AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))


class Consumer:
    """Stays away for the first `away` look-ups, then knows every topic; has no records."""

    def __init__(self, away: float) -> None:
        self._away = away
        self.asked = threading.Event()
        self.assigned: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.asked.set()
        if self._away > 0:
            self._away -= 1
            raise AWAY
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

    def incremental_assign(self, partitions: list[Any]) -> None:
        for p in partitions:
            self.assigned.put((p.topic, p.partition, p.offset))

    def poll(self, timeout: float) -> None:
        return None

    def close(self) -> None:
        pass


MakeReader = Callable[[Consumer, float], LogReader]


@pytest.fixture
def seen() -> queue.SimpleQueue[Record | BaseException]:
    return queue.SimpleQueue()


@pytest.fixture
def make_reader(monkeypatch: pytest.MonkeyPatch, seen: queue.SimpleQueue[Record | BaseException]) -> MakeReader:
    monkeypatch.setattr(reader, "ASK_S", 0.0)

    def make(consumer: Consumer, outage_s: float) -> LogReader:
        monkeypatch.setattr(reader, "make_consumer", lambda *_: consumer)
        return LogReader(KafkaConfig(outage_timeout_s=outage_s), "127.0.0.1:1", "test", "test", seen.put)

    return make


def test_a_topic_is_read_once_the_broker_is_back(make_reader: MakeReader) -> None:
    consumer = Consumer(away=3)
    reading = make_reader(consumer, LIMIT_S)
    reading.assign([(("t", 0), 5)])
    assert consumer.assigned.get(timeout=LIMIT_S) == ("t", 0, 5)
    reading.close()


def test_an_outage_that_lasts_too_long_is_the_last_thing_that_a_sink_gets(
    make_reader: MakeReader, seen: queue.SimpleQueue[Record | BaseException]
) -> None:
    reading = make_reader(Consumer(away=float("inf")), 0.05)
    reading.assign([(("t", 0), 5)])
    failure = seen.get(timeout=LIMIT_S)
    assert isinstance(failure, DeadlineExceeded)
    assert str(failure) == "waited 0.05 s for the broker to look up topic t (kafka.outage_timeout_s)"
    reading.close()
    assert seen.empty()


def test_closing_a_reader_ends_its_wait_for_the_broker(
    make_reader: MakeReader, seen: queue.SimpleQueue[Record | BaseException]
) -> None:
    consumer = Consumer(away=float("inf"))
    reading = make_reader(consumer, 600.0)
    reading.assign([(("t", 0), 5)])
    assert consumer.asked.wait(LIMIT_S)
    reading.close()
    assert seen.empty()
