"""The settings of the local broker: one KRaft node, loopback only, small, quick to come back. Pure."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from pathlib import Path


def server_properties(data: Path, port: int, controller_port: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Properties of a broker that is its own controller. `extra` takes precedence."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        # Loopback only: there is no password, so no other machine may reach it.
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        # There is one node.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # A mistyped name is an error, not a topic.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # After a kill the former session must run out before the broker serves again (9 s by default). A much shorter one fences
        # a healthy broker that gets no processor for a while, because training takes all of them.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
        # The offsets of a finished run, which tools show, are kept for a year.
        "offsets.retention.minutes": "525600",
        # Small: two threads of each kind, no 128 MiB for log cleaning, at most 256 MiB of requests waiting in memory.
        "num.network.threads": "2",
        "num.io.threads": "2",
        "background.threads": "2",
        "num.recovery.threads.per.data.dir": "2",
        "log.cleaner.dedupe.buffer.size": "2097152",
        "queued.max.request.bytes": "268435456",
        **extra,
    }


def render(properties: Mapping[str, str]) -> str:
    """A Java properties file."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def parse(text: str) -> dict[str, str]:
    """The properties in a file that `render` or Kafka wrote."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def ports_of(text: str) -> tuple[int, int]:
    """The broker's and the controller's port in a rendered file."""
    listeners = dict(entry.split("://", 1) for entry in parse(text)["listeners"].split(","))
    return int(listeners["PLAINTEXT"].rpartition(":")[2]), int(listeners["CONTROLLER"].rpartition(":")[2])


def new_cluster_id() -> str:
    """16 random bytes in URL-safe base64, as Kafka makes them; never with a leading dash, which would read as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


# The broker's own log: warnings, and the two lines about its start and its end.
LOG4J2 = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=INFO
"""

# For the tools: errors go to stderr, so that stdout holds only records.
LOG4J2_TOOLS = """\
status=error
appender.err.type=Console
appender.err.name=err
appender.err.target=SYSTEM_ERR
appender.err.layout.type=PatternLayout
appender.err.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=ERROR
rootLogger.appenderRef.err.ref=err
"""
