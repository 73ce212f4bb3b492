from __future__ import annotations

import pytest

from broker_config.clients import settings as clients
from broker_config.topics import MIB, max_message_bytes
from schemas.config.kafka import KafkaConfig

SERVERS = "127.0.0.1:1"


def test_a_producer_never_loses_doubles_or_creates_by_accident() -> None:
    settings = clients.producer_settings(KafkaConfig(), SERVERS, "p")
    assert settings["enable.idempotence"] is True
    assert settings["acks"] == "all"
    assert settings["allow.auto.create.topics"] is False


def test_a_consumer_never_skips_in_silence_and_commits_nothing_by_itself() -> None:
    settings = clients.consumer_settings(KafkaConfig(), SERVERS, "c", "g")
    assert settings["auto.offset.reset"] == "error"
    assert settings["enable.auto.commit"] is False
    assert settings["check.crcs"] is True


@pytest.mark.parametrize("mib", [1, 64, 90])
def test_the_largest_record_fits_through_every_limit(mib: int) -> None:
    kafka = KafkaConfig(max_record_mib=mib)
    cap = max_message_bytes(kafka)
    producer = clients.producer_settings(kafka, SERVERS, "p")
    consumer = clients.consumer_settings(kafka, SERVERS, "c", "g")
    assert cap >= mib * MIB
    assert producer["message.max.bytes"] == cap
    assert producer["queue.buffering.max.kbytes"] * 1024 >= 2 * cap
    assert consumer["fetch.max.bytes"] >= cap
    assert consumer["receive.message.max.bytes"] >= consumer["fetch.max.bytes"] + 512
    # A batch of zstd is inflated by guesses that are tripled up to this limit.
    assert consumer["receive.message.max.bytes"] >= 3 * cap


def test_librdkafka_accepts_every_setting() -> None:
    kafka = KafkaConfig(compression="zstd", max_record_mib=90)
    clients.make_producer(kafka, SERVERS, "p")
    consumer = clients.make_consumer(kafka, SERVERS, "c", "g", partition_eof=True)
    consumer.close()
    clients.make_admin(kafka, SERVERS, "a")
