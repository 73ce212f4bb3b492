"""The check before anything starts: a broker that cannot be used is named, with the cause, within seconds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from broker_config.clients.security import security_settings
from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.preflight import check_broker
from schemas.config.kafka import KafkaConfig, SecurityConfig
from schemas.errors import ConfigError
from tests.brokers import Broker
from tests.integration.broker.log_access import SECONDS

MakeBroker = Callable[..., LocalBroker]


def test_a_usable_broker_passes(broker: Broker) -> None:
    check_broker(broker.kafka, broker.bootstrap, Deadline(SECONDS))


def test_one_reachable_server_of_a_list_is_enough(broker: Broker) -> None:
    check_broker(broker.kafka, f"127.0.0.1:1,{broker.bootstrap}", Deadline(SECONDS))


class Listener:
    """A server on loopback that gives every connection the same answer and is no Kafka."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        held: list[socket.socket] = []
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                break
            held.append(connection)
            if self._answer is not None:
                connection.recv(4096)
                connection.sendall(self._answer)
                connection.close()
        for connection in held:
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SECONDS)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not Kafka.*HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46\x00", "wants TLS"),
        (b"", "closes the connection"),
        (None, "does not answer"),
    ],
)
def test_what_is_no_kafka_is_named_quickly(answer: bytes | None, cause: str) -> None:
    listener = Listener(answer)
    started = time.monotonic()
    try:
        with pytest.raises(ConfigError, match=cause) as caught:
            check_broker(KafkaConfig(), listener.address, Deadline(60))
    finally:
        listener.close()
    assert [problem.key for problem in caught.value.problems] == ["kafka.bootstrap_servers"]
    assert time.monotonic() - started < 15


def test_nobody_listening_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"nobody listens at 127\.0\.0\.1:1"):
        check_broker(KafkaConfig(), "127.0.0.1:1", Deadline(60))


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ConfigError, match="does not resolve"):
        check_broker(KafkaConfig(), "no-such-host.invalid:9092", Deadline(60))


def test_tls_to_a_plain_port_is_named(broker: Broker) -> None:
    kafka = KafkaConfig(security=SecurityConfig(protocol="SSL"))
    with pytest.raises(ConfigError, match="does not speak TLS"):
        check_broker(kafka, broker.bootstrap, Deadline(60))


def test_a_login_where_none_is_wanted_is_named(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_TEST_PASSWORD", "canary-3")
    security = SecurityConfig.model_validate(
        {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "username": "u", "password": "env:WEIR_TEST_PASSWORD"}
    )
    started = time.monotonic()
    with pytest.raises(ConfigError, match=r"SASL PLAIN mechanism handshake failed: .*; check username, password") as caught:
        check_broker(KafkaConfig(security=security), broker.bootstrap, Deadline(60))
    assert "canary" not in str(caught.value)
    assert time.monotonic() - started < 15


LOGIN = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="broker" password="b" user_broker="b" user_learner="right";'
    ),
}


def test_a_wrong_password_is_named_quickly_and_the_right_one_passes(
    own_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_TEST_PASSWORD", "right")
    settings = {
        "protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "username": "learner",
        "password": "env:WEIR_TEST_PASSWORD",
    }
    kafka = KafkaConfig(security=SecurityConfig.model_validate(settings))
    bootstrap = own_broker(properties=LOGIN, client=security_settings(kafka.security)).start(Deadline(60))
    check_broker(kafka, bootstrap, Deadline(30))

    monkeypatch.setenv("WEIR_TEST_PASSWORD", "wrong-canary")
    started = time.monotonic()
    with pytest.raises(ConfigError, match=r"(?i)authentication failed.*check username, password") as caught:
        check_broker(kafka, bootstrap, Deadline(60))
    assert "canary" not in str(caught.value)
    with pytest.raises(ConfigError, match="whether it wants a login"):
        check_broker(KafkaConfig(), bootstrap, Deadline(60))
    assert time.monotonic() - started < 15
