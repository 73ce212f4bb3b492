"""Topics of a real Kafka: made as asked for, taken once, deleted, made again, cut."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka.admin import AdminClient

from broker_config import topics
from broker_config.clients import admin as topics_admin
from broker_config.clients import settings as clients
from broker_config.clients.admin import LogBounds, TopicExists
from broker_config.deadline import Deadline
from broker_config.topics import Topics, TopicSpec
from schemas.config.kafka import KafkaConfig
from schemas.errors import BrokerError
from tests.brokers import Broker
from tests.integration.broker.log_access import SECONDS, make_topics, publish
from tests.support import eventually


def test_created_topics_hold_what_was_asked_for(admin: AdminClient, broker: Broker, run_id: str) -> None:
    kafka = KafkaConfig(partitions=3, request_partitions=2, max_record_mib=5)
    specs = [*topics.specs_for_run(run_id, kafka).values(), topics.version_spec(run_id, "trajectories", 0, kafka)]
    ids = topics_admin.create_topics(admin, specs, Deadline(SECONDS))
    assert set(ids) == {spec.name for spec in specs}
    assert len(set(ids.values())) == len(specs)
    assert topics_admin.topics_of_run(admin, run_id, Deadline(SECONDS)) == sorted(ids)
    described = broker.run_tool("kafka-configs.sh", "--describe", "--topic", Topics(run_id).trajectories(0))
    assert "max.message.bytes=6291456" in described and "message.timestamp.type=LogAppendTime" in described
    found = topics_admin.describe(admin, list(ids), Deadline(SECONDS))
    assert {name: info.topic_id for name, info in found.items()} == ids
    assert found[Topics(run_id).trajectories(0)].partitions == 3
    assert found[Topics(run_id).requests].partitions == 2


def test_the_topic_id_is_the_one_that_kafka_prints(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    info = topics_admin.describe(admin, [topic], Deadline(SECONDS))[topic]
    assert f"TopicId: {info.topic_id}" in broker.run_tool("kafka-topics.sh", "--describe", "--topic", topic)


def test_a_run_id_can_be_taken_once(admin: AdminClient, broker: Broker, run_id: str) -> None:
    assert topics_admin.topics_of_run(admin, run_id, Deadline(SECONDS)) == []
    control = topics.specs_for_run(run_id, broker.kafka)["control"]
    ids = topics_admin.create_topics(admin, [control], Deadline(SECONDS))
    assert topics_admin.topics_of_run(admin, run_id, Deadline(SECONDS)) == [control.name]
    with pytest.raises(TopicExists) as caught:
        topics_admin.create_topics(admin, [control], Deadline(SECONDS))
    assert caught.value.names == (control.name,)
    assert topics_admin.create_topics(admin, [control], Deadline(SECONDS), adopt_existing=True) == ids


def test_of_many_that_take_a_run_id_one_wins(broker: Broker, run_id: str, admin: AdminClient) -> None:
    control = topics.specs_for_run(run_id, broker.kafka)["control"]
    won: list[int] = []
    lost: list[int] = []

    def take(number: int) -> None:
        own = clients.make_admin(broker.kafka, broker.bootstrap, f"test.admin.{number}")
        try:
            topics_admin.create_topics(own, [control], Deadline(SECONDS))
            won.append(number)
        except TopicExists:
            lost.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert (len(won), len(lost)) == (1, 3)


def test_another_size_than_asked_for_is_one_error_with_the_fix(admin: AdminClient, broker: Broker, run_id: str) -> None:
    small = topics.version_spec(run_id, "trajectories", 0, KafkaConfig(max_record_mib=2))
    topics_admin.create_topics(admin, [small], Deadline(SECONDS))
    large = topics.version_spec(run_id, "trajectories", 0, KafkaConfig(max_record_mib=64, partitions=2))
    with pytest.raises(BrokerError) as caught:
        topics_admin.create_topics(admin, [large], Deadline(SECONDS), adopt_existing=True)
    text = str(caught.value)
    assert f"topic {small.name}: max.message.bytes: asked 68157440, got 3145728" in text
    assert "kafka.max_record_mib" in text
    assert "partitions: asked 2, got 1" in text


def test_a_refused_setting_names_topic_and_setting(admin: AdminClient, run_id: str) -> None:
    with pytest.raises(BrokerError, match=r"\.x: INVALID_CONFIG .*max\.message\.bytes"):
        topics_admin.create_topics(admin, [TopicSpec(f"{run_id}.x", 1, 1, {"max.message.bytes": "many"})], Deadline(SECONDS))
    with pytest.raises(BrokerError, match=r"INVALID_REPLICATION_FACTOR.*kafka\.replication_factor"):
        topics_admin.create_topics(admin, [TopicSpec(f"{run_id}.y", 1, 3)], Deadline(SECONDS))


def test_the_id_changes_when_a_topic_is_made_again(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    first = topics_admin.describe(admin, [topic], Deadline(SECONDS))[topic].topic_id
    assert topics_admin.delete_topics(admin, [topic, f"{run_id}.gone"], Deadline(SECONDS)) == [topic]
    eventually(lambda: not topics_admin.describe(admin, [topic], Deadline(SECONDS)), SECONDS, "the deletion")
    make_topics(admin, broker, run_id, 0)
    assert topics_admin.describe(admin, [topic], Deadline(SECONDS))[topic].topic_id != first


def test_cut_records_move_the_start_of_the_log(admin: AdminClient, broker: Broker, run_id: str) -> None:
    [topic] = make_topics(admin, broker, run_id, 0)
    publish(broker, topic, *[b"x"] * 10)
    assert topics_admin.log_bounds(admin, [(topic, 0)], Deadline(SECONDS)) == {(topic, 0): LogBounds(0, 10)}
    assert topics_admin.delete_records(admin, {(topic, 0): 4}, Deadline(SECONDS)) == {(topic, 0): 4}
    assert topics_admin.log_bounds(admin, [(topic, 0)], Deadline(SECONDS)) == {(topic, 0): LogBounds(4, 10)}
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        topics_admin.delete_records(admin, {(topic, 0): 99}, Deadline(SECONDS))
    with pytest.raises(BrokerError, match="gone"):
        topics_admin.log_bounds(admin, [(f"{run_id}.gone", 0)], Deadline(SECONDS))
