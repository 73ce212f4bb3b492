"""Which broker: the one that the config names, else the one that the environment names, else the local one.

The only place that reads KAFKA_BOOTSTRAP_SERVERS.
"""

from __future__ import annotations

import os

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.preflight import KEY, check_broker
from schemas.config.kafka import KafkaConfig
from schemas.errors import ConfigError, Problem

ENVIRONMENT = "KAFKA_BOOTSTRAP_SERVERS"
LOOPBACK = ("127.", "localhost", "[::1]")


def configured_servers(kafka: KafkaConfig) -> str | None:
    """The broker that the config or the environment names; None means the local broker."""
    return kafka.bootstrap_servers or os.environ.get(ENVIRONMENT) or None


def bootstrap_servers(kafka: KafkaConfig, deadline: Deadline) -> str:
    """`host:port,...` of a broker that answers. The local broker is not started here.

    Raises:
        ConfigError: the named broker cannot be used, with the cause; or none is named, and the local one does not run.
    """
    servers = configured_servers(kafka)
    if servers is not None:
        check_broker(kafka, servers, deadline)
        return servers
    status = LocalBroker().status()
    if status.state != "running" or status.bootstrap is None:
        why = f"none is named, and the local broker is {status.state}"
        raise ConfigError([Problem(KEY, None, why, "start it with `weir broker start`, or name a broker")])
    return status.bootstrap


def on_loopback(bootstrap: str) -> bool:
    """Whether every server of the list is on this machine's loopback."""
    return all(server.strip().startswith(LOOPBACK) for server in bootstrap.split(","))
