"""Assigning partitions: a topic is looked up before a consumer reads it."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from broker_config.clients.errors import MOMENTARY, explain, kafka_error
from broker_config.clients.patience import NotYet, ask_patiently
from broker_config.deadline import Deadline
from schemas.errors import BrokerError

RETRY_S = 0.2


def assign(consumer: Consumer, positions: Mapping[tuple[str, int], int], deadline: Deadline) -> None:
    """Read exactly these partitions, each from its offset on; replaces the former assignment.

    Raises:
        BrokerError: a topic or partition does not exist, or the user may not see it.
        DeadlineExceeded: no answer in time.
    """
    for topic in sorted({topic for topic, _ in positions}):
        partitions = look_up(consumer, topic, deadline)
        missing = sorted(p for t, p in positions if t == topic and p not in partitions)
        if missing:
            raise BrokerError(f"topic {topic} has no partition {missing[0]}; it has {len(partitions)}")
    consumer.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()])


def look_up(consumer: Consumer, topic: str, deadline: Deadline) -> set[int]:
    """The partitions of a topic, which the consumer knows from now on.

    Call it before `Consumer.assign` or `incremental_assign`, for two reasons. A consumer to which a missing or hidden topic is
    assigned stays silent for ever; here that is an error. And a topic that was looked up delivers within 0.1 s, any other one
    after 0.7 s.

    Raises:
        BrokerError: the topic does not exist, or the user may not see it.
        DeadlineExceeded: no answer in time.
    """

    def ask() -> set[int]:
        try:
            metadata = consumer.list_topics(topic, timeout=max(0.001, deadline.remaining())).topics[topic]
        except KafkaException as exception:
            error = kafka_error(exception)
        else:
            if metadata.error is None:
                return set(metadata.partitions)
            error = metadata.error
        if error.name() not in MOMENTARY:
            raise BrokerError(f"looking up topic {topic}: {explain(error)}")
        raise NotYet(f"the broker to look up topic {topic}: {explain(error)}", RETRY_S)

    return ask_patiently(ask, deadline)
