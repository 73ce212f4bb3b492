from __future__ import annotations

import logging
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from pydantic import SecretStr

from broker_config.clients import settings as clients
from broker_config.clients.errors import REPEAT_S, ErrorLog, explain
from broker_config.clients.security import resolve_secret, security_settings
from broker_config.topics import MIB, max_message_bytes
from schemas.config.kafka import KafkaConfig, SecurityConfig
from schemas.errors import ConfigError

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


def test_a_login_is_handed_to_librdkafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEIR_TEST_PASSWORD", "canary-1")
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    security = SecurityConfig(
        protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        username="learner",
        password=SecretStr("env:WEIR_TEST_PASSWORD"),
        ca_location=str(ca),
    )
    assert security_settings(security) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "learner",
        "sasl.password": "canary-1",
        "ssl.ca.location": str(ca),
    }
    assert "canary" not in repr(KafkaConfig(security=security))


def test_everything_a_login_lacks_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_TEST_PASSWORD", raising=False)
    security = SecurityConfig(protocol="SASL_SSL", password=SecretStr("env:WEIR_TEST_PASSWORD"), ca_location="/nowhere/ca.pem")
    with pytest.raises(ConfigError) as caught:
        security_settings(security)
    assert [problem.key for problem in caught.value.problems] == [
        "kafka.security.sasl_mechanism",
        "kafka.security.username",
        "kafka.security.password",
        "kafka.security.ca_location",
    ]


def test_a_secret_is_read_from_a_file_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("canary 2\n")
    assert resolve_secret(f"file:{file}", "k") == "canary 2"


@pytest.mark.parametrize("reference", ["canary", "env:", "file:/nowhere/at/all", "env:WEIR_TEST_UNSET"])
def test_what_is_no_secret_is_refused(reference: str) -> None:
    with pytest.raises(ConfigError):
        resolve_secret(reference, "kafka.security.password")


def test_a_repeated_fault_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    report = ErrorLog("p", clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            report(KafkaError(KafkaError._TRANSPORT, "refused"))
        report(KafkaError(KafkaError._AUTHENTICATION, "no"))
        now[0] = REPEAT_S
        report(KafkaError(KafkaError._TRANSPORT, "refused"))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "_TRANSPORT" in lines[0] and "client=p" in lines[0]
    assert "_AUTHENTICATION" in lines[1]
    assert "99 more" in lines[2]


def test_an_error_is_one_line_with_advice() -> None:
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied\n" + "dump " * 500)
    text = explain(error)
    assert text.startswith("TOPIC_AUTHORIZATION_FAILED (denied)")
    assert "ACL" in text and "\n" not in text and "dump" not in text
