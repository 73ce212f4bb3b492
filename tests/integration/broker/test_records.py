"""Records of a real Kafka, through our clients and through its own tools."""

from __future__ import annotations

import hashlib
import os
import time

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from broker_config.clients import settings as clients
from broker_config.clients.consuming import assign
from broker_config.deadline import Deadline
from schemas.errors import BrokerError
from tests.brokers import Broker
from tests.integration.broker.log_access import SECONDS, make_topics, publish, read


def test_a_published_record_can_be_read_within_milliseconds(
    admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer
) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    assign(consumer, {(topic, 0): 0}, Deadline(SECONDS))
    producer = clients.make_producer(broker.kafka, broker.bootstrap, "test.producer")
    took: list[float] = []
    for number in range(40):
        value = hashlib.sha256(str(number).encode()).digest() * 300
        started = time.monotonic()
        producer.produce(topic, value, partition=0)
        assert producer.flush(SECONDS) == 0
        assert read(consumer, 1) == [value]
        took.append(time.monotonic() - started)
    assert sorted(took)[10] < 0.02, "a quarter of all takes less than 20 ms, on a busy machine too"


def test_a_consumer_reads_a_new_topic_at_once(admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer) -> None:
    first, second, third = make_topics(admin, broker, run_id, 0, 1, 2)
    for topic in (first, second, third):
        publish(broker, topic, topic.encode())
    assign(consumer, {(first, 0): 0}, Deadline(SECONDS))
    assert read(consumer, 1) == [first.encode()]
    took: list[float] = []
    for new, positions in (
        (second, {(first, 0): 1, (second, 0): 0}),
        (third, {(first, 0): 1, (second, 0): 1, (third, 0): 0}),
    ):
        started = time.monotonic()
        assign(consumer, positions, Deadline(SECONDS))
        assert read(consumer, 1) == [new.encode()]
        took.append(time.monotonic() - started)
    assert min(took) < 0.5, "a topic that was not looked up takes 0.7 s"


@pytest.mark.parametrize(
    ("codec", "random_mib", "zero_mib"),
    [
        ("none", 64, 0),
        ("lz4", 64, 0),
        # A ratio of 2.3 is where the guessing of zstd's size misses unless the consumer's limit is three times the record.
        ("zstd", 27, 35),
        ("gzip", 4, 4),
        ("snappy", 8, 8),
    ],
)
def test_a_large_record_arrives_whole_with_every_codec(
    admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer, codec: str, random_mib: int, zero_mib: int
) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    kafka = broker.kafka.model_copy(update={"compression": codec})
    value = os.urandom(random_mib << 20) + bytes(zero_mib << 20)
    publish(Broker(broker.bootstrap, broker.kind, kafka), topic, value)
    assign(consumer, {(topic, 0): 0}, Deadline(SECONDS))
    assert read(consumer, 1) == [value]


def test_an_offset_outside_the_log_is_an_error_and_not_a_jump(
    admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer
) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    publish(broker, topic, b"x")
    assign(consumer, {(topic, 0): 7}, Deadline(SECONDS))
    with pytest.raises(BrokerError, match="_AUTO_OFFSET_RESET"):
        read(consumer, 1)


def test_a_missing_topic_is_an_error_and_not_silence(broker: Broker, run_id: str, consumer: Consumer) -> None:
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PART"):
        assign(consumer, {(f"{run_id}.gone", 0): 0}, Deadline(SECONDS))


def test_committed_offsets_are_shown_though_nobody_is_a_member(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    publish(broker, topic, b"x", b"y")
    group = f"{run_id}.learner"
    consumer = clients.make_consumer(broker.kafka, broker.bootstrap, "test.consumer", group)
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    finally:
        consumer.close()
    described = broker.run_tool("kafka-consumer-groups.sh", "--describe", "--group", group)
    (row,) = [line.split() for line in described.splitlines() if topic in line]
    assert row[3:6] == ["1", "2", "1"], "current offset, end of the log, lag"


def test_the_stock_console_consumer_shows_keys_and_headers(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    publish(broker, topic, b"\x00binary", headers=[("gist", b'{"r":[1.0]}'), ("kind", b"group")])
    shown = broker.run_tool(
        "kafka-console-consumer.sh",
        *("--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000"),
        *("--formatter-property", "print.headers=true", "--formatter-property", "print.key=true"),
        *("--formatter-property", "print.value=false"),
    )
    assert shown.splitlines()[0] == 'gist:{"r":[1.0]},kind:group\tk0'


def test_a_record_of_the_stock_console_producer_can_be_read(
    admin: AdminClient, broker: Broker, run_id: str, consumer: Consumer
) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    broker.run_tool("kafka-console-producer.sh", "--topic", topic, stdin="by hand\n")
    assign(consumer, {(topic, 0): 0}, Deadline(SECONDS))
    assert read(consumer, 1) == [b"by hand"]
    offsets = broker.run_tool("kafka-get-offsets.sh", "--topic", topic)
    assert offsets.strip() == f"{topic}:0:1"
