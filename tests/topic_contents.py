"""What lies in topics, read by a client of the tests' own: none of the readers under test is needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import TopicPartition

from broker_config.clients import admin
from broker_config.clients.errors import data_of
from broker_config.clients.settings import make_admin, make_consumer
from broker_config.deadline import Deadline
from schemas.config.kafka import KafkaConfig
from schemas.records import control
from schemas.records.control import State

READ_S = 60.0
KAFKA = KafkaConfig()


def read_topics(bootstrap: str, topics: Sequence[str], within_s: float = READ_S) -> dict[str, list[Any]]:
    """All records of partition 0 of these topics, from their present start to their present end."""
    deadline = Deadline(within_s)
    client = make_admin(KAFKA, bootstrap, "tests")
    bounds = admin.log_bounds(client, [(topic, 0) for topic in topics], deadline)
    found: dict[str, list[Any]] = {topic: [] for topic in topics}
    next_offsets = {topic: bounds[topic, 0].start for topic in topics}
    consumer = make_consumer(KAFKA, bootstrap, "tests", "tests")
    try:
        consumer.assign([TopicPartition(topic, 0, start) for topic, start in next_offsets.items()])
        while unread := [topic for topic in topics if next_offsets[topic] < bounds[topic, 0].end]:
            message = data_of(consumer.poll(0.5))
            if message is None:
                deadline.check(f"the rest of {', '.join(unread)}")
                continue
            found[message.topic()].append(message)
            next_offsets[message.topic()] = message.offset() + 1
    finally:
        consumer.close()
    return found


def read_topic(bootstrap: str, topic: str) -> list[Any]:
    return read_topics(bootstrap, [topic])[topic]


def last_state(bootstrap: str, control_topic: str) -> State:
    """The state that holds."""
    decoded = [control.decode(record.value()) for record in read_topic(bootstrap, control_topic)]
    states = [record for record in decoded if isinstance(record, State)]
    assert states, f"{control_topic} holds no state"
    return states[-1]
