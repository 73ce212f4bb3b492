"""Is there a Kafka, and may we use it? One clear cause within seconds, before anything starts.

librdkafka retries for ever and reports causes only in passing. So the first probe is our own: connect, request the API versions
in plain bytes, see what answers. Then a real client logs in, and a connection is made to each broker that the metadata names.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from broker_config.clients.errors import explain
from broker_config.clients.settings import admin_settings
from broker_config.deadline import Deadline
from schemas.config.kafka import KafkaConfig
from schemas.errors import ConfigError, Problem

KEY = "kafka.bootstrap_servers"
LIMIT_S = 12.0
CONNECT_S = 3.0
LOGIN_S = 6.0
# An API versions request: length, API key 18, version 0, correlation id 7, client id "weir".
API_VERSIONS = struct.pack(">ihhih4s", 14, 18, 0, 7, 4, b"weir")
TLS_ALERT = 0x15


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def check_broker(kafka: KafkaConfig, bootstrap: str, deadline: Deadline) -> None:
    """Return if a broker of the list answers and accepts this client; decided within 15 s.

    Raises:
        ConfigError: none does; the problems name the causes.
    """
    deadline = deadline.at_most(LIMIT_S)
    settings = admin_settings(kafka, bootstrap, "weir.preflight")
    causes: list[Problem] = []
    for server in parse_servers(bootstrap):
        cause = _probe(server, kafka.security.protocol, bootstrap, deadline)
        if cause is None:
            _log_in(settings, kafka, bootstrap, deadline)
            return
        causes.append(cause)
    raise ConfigError(causes)


def parse_servers(bootstrap: str) -> Sequence[Server]:
    """The servers of a `host:port,host:port` list.

    Raises:
        ConfigError: it is not such a list.
    """
    servers: list[Server] = []
    for entry in bootstrap.split(","):
        host, colon, port = entry.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError([Problem(KEY, bootstrap, f"{entry.strip()!r} is not host:port", "write host:port,host:port")])
        servers.append(Server(host.strip("[]"), int(port)))
    return servers


def _probe(server: Server, protocol: str, bootstrap: str, deadline: Deadline) -> Problem | None:
    """What is wrong with one server, seen from outside; None if it speaks Kafka over the configured protocol."""
    step = deadline.at_most(CONNECT_S)
    try:
        with socket.create_connection((server.host, server.port), timeout=max(0.1, step.remaining())) as connection:
            # A connection attempt whose own port is the one that it tries connects to itself.
            if connection.getsockname() == connection.getpeername():
                raise ConnectionRefusedError("nobody listens")
            return (
                _probe_tls(connection, server, bootstrap)
                if protocol.endswith("SSL")
                else _probe_plain(connection, server, bootstrap)
            )
    except socket.gaierror as error:
        return Problem(KEY, bootstrap, f"the name {server.host} does not resolve ({error.strerror})", "fix the host name")
    except ConnectionRefusedError:
        return Problem(KEY, bootstrap, f"nobody listens at {server}", "start the broker, or fix host and port")
    except TimeoutError:
        return Problem(
            KEY,
            bootstrap,
            f"{server} does not answer within {CONNECT_S:g} s",
            "check that it is a broker, that it is not hung, and that no firewall is in between",
        )
    except OSError as error:
        return Problem(KEY, bootstrap, f"{server} cannot be reached ({error})", "fix host and port, or the network")


def _probe_plain(connection: socket.socket, server: Server, bootstrap: str) -> Problem | None:
    connection.sendall(API_VERSIONS)
    try:
        head = connection.recv(8)
    except ConnectionResetError:
        head = b""
    if len(head) == 8 and head[4:] == struct.pack(">i", 7):
        return None
    if head[:1] == bytes([TLS_ALERT]):
        return Problem(
            KEY, bootstrap, f"{server} wants TLS", "set kafka.security.protocol to SSL or SASL_SSL, or use the port without TLS"
        )
    what = "closes the connection" if not head else f"answers {head!r}"
    why = f"what listens at {server} is not Kafka, or wants TLS (it {what})"
    return Problem(KEY, bootstrap, why, "fix host and port, or set kafka.security.protocol")


def _probe_tls(connection: socket.socket, server: Server, bootstrap: str) -> Problem | None:
    # Only whether the server speaks TLS; librdkafka checks the certificate at the login.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with context.wrap_socket(connection, server_hostname=server.host):
            return None
    except (ssl.SSLError, ConnectionResetError) as error:
        why = f"{server} does not speak TLS ({error})"
        return Problem(KEY, bootstrap, why, "set kafka.security.protocol to PLAINTEXT or SASL_PLAINTEXT, or use the TLS port")


def _log_in(settings: dict[str, object], kafka: KafkaConfig, bootstrap: str, deadline: Deadline) -> None:
    step = deadline.at_most(LOGIN_S)
    reported: list[KafkaError] = []
    try:
        admin = AdminClient({**settings, "error_cb": reported.append})
    except KafkaException as error:
        raise ConfigError([Problem("kafka.security", None, str(error), "fix the setting that it names")]) from None
    while not step.expired:
        try:
            metadata = admin.list_topics(timeout=max(0.05, min(0.25, step.remaining())))
        except KafkaException:
            admin.poll(0)  # callbacks run only here, and only they know the cause
            causes = [error for error in reported if error.name() in ("_AUTHENTICATION", "_SSL")]
            if causes:
                text = causes[0].str().splitlines()[0][:300]
                fix = (
                    "check username, password and mechanism"
                    if causes[0].name() == "_AUTHENTICATION"
                    else "check ca_location and the host name"
                )
                raise ConfigError([Problem("kafka.security", kafka.security.protocol, f"{bootstrap}: {text}", fix)]) from None
            continue
        _check_advertised([Server(broker.host, broker.port) for broker in metadata.brokers.values()], bootstrap, deadline)
        return
    last = f" ({explain(reported[-1])})" if reported else ""
    why = f"a Kafka listens but does not serve a {kafka.security.protocol} client{last}"
    raise ConfigError([Problem(KEY, bootstrap, why, "check whether it wants a login (kafka.security) or is still starting")])


def _check_advertised(servers: Sequence[Server], bootstrap: str, deadline: Deadline) -> None:
    """A broker sends its clients to the addresses that it advertises; one that only its own host knows is a common mistake."""
    for server in servers:
        try:
            socket.create_connection((server.host, server.port), timeout=max(0.1, min(CONNECT_S, deadline.remaining()))).close()
        except OSError as error:
            why = f"the broker answers, but sends clients to {server}, which cannot be reached ({error})"
            raise ConfigError([Problem(KEY, bootstrap, why, "fix the broker's advertised.listeners")]) from None
