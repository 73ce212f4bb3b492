"""Topics of one run: made, written and read by plain clients with the settings of `broker_config`."""

from __future__ import annotations

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from broker_config import topics
from broker_config.clients import admin as topics_admin
from broker_config.clients import settings as clients
from broker_config.clients.errors import data_of
from broker_config.deadline import Deadline
from tests.brokers import Broker

SECONDS = 30.0


def make_topics(admin: AdminClient, broker: Broker, run_id: str, *versions: int) -> list[str]:
    specs = [topics.version_spec(run_id, "trajectories", version, broker.kafka) for version in versions]
    return list(topics_admin.create_topics(admin, specs, Deadline(SECONDS)))


def publish(broker: Broker, topic: str, *values: bytes, headers: list[tuple[str, bytes]] | None = None) -> None:
    producer = clients.make_producer(broker.kafka, broker.bootstrap, "test.producer")
    failed: list[object] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=f"k{number}",
            partition=0,
            headers=headers or [],
            on_delivery=lambda e, _: failed.append(e) if e else None,
        )
    assert producer.flush(SECONDS) == 0
    assert failed == []


def read(consumer: Consumer, count: int) -> list[bytes]:
    deadline = Deadline(SECONDS)
    values: list[bytes] = []
    while len(values) < count:
        deadline.check(f"{count} records, have {len(values)}")
        message = data_of(consumer.poll(0.2))
        if message is not None:
            values.append(message.value() or b"")
    return values
