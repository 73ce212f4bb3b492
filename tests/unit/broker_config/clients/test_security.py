from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from broker_config.clients.security import resolve_secret, security_settings
from schemas.config.kafka import KafkaConfig, SecurityConfig
from schemas.errors import ConfigError


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


def test_everything_a_login_lacks_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
