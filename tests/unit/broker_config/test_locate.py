from __future__ import annotations

from pathlib import Path

import pytest

from broker_config.deadline import Deadline
from broker_config.locate import bootstrap_servers, configured_servers, on_loopback
from schemas.config.kafka import KafkaConfig
from schemas.errors import ConfigError


def test_the_config_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "env:1")
    assert configured_servers(KafkaConfig(bootstrap_servers="config:1")) == "config:1"
    assert configured_servers(KafkaConfig()) == "env:1"
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS")
    assert configured_servers(KafkaConfig()) is None


def test_a_local_broker_that_does_not_run_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="weir broker start"):
        bootstrap_servers(KafkaConfig(), Deadline(5))


def test_loopback_is_known() -> None:
    assert on_loopback("127.0.0.1:1,localhost:2")
    assert not on_loopback("127.0.0.1:1,kafka.example:2")
