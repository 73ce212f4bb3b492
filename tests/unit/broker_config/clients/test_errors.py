from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError

from broker_config.clients.errors import REPEAT_S, ErrorLog, explain
from tests.fakes.clock import Clock


def test_a_repeated_fault_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    report = ErrorLog("p", clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            report(KafkaError(KafkaError._TRANSPORT, "refused"))
        report(KafkaError(KafkaError._AUTHENTICATION, "no"))
        clock.now += REPEAT_S
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
