"""Which broker: the configured one, the environment's, else the local one, which is started.

The one place that reads KAFKA_BOOTSTRAP_SERVERS.
"""

from __future__ import annotations

import os

from broker_config.deadline import Deadline
from broker_config.local.artifacts import Say
from broker_config.local.broker import LocalBroker, log
from broker_config.preflight import KEY, check_broker
from schemas.config.kafka import KafkaConfig
from schemas.errors import ConfigError, Problem

ENVIRONMENT = "KAFKA_BOOTSTRAP_SERVERS"
LOOPBACK = ("127.", "localhost", "[::1]")


def configured_servers(kafka: KafkaConfig) -> str | None:
    """The broker that the config or the environment names; None means the local broker."""
    return kafka.bootstrap_servers or os.environ.get(ENVIRONMENT) or None


def bootstrap_servers(kafka: KafkaConfig, deadline: Deadline, *, start_local: bool = True, say: Say = log.info) -> str:
    """`host:port,...` of a broker that answers.

    Args:
        start_local: start the local broker if it is the one and does not run; otherwise its not running is an error.
        say: told each slow step of a first start.

    Raises:
        ConfigError: the named broker cannot be used, with the cause.
        BrokerError, DeadlineExceeded: the local broker does not start.
    """
    servers = configured_servers(kafka)
    if servers is None:
        broker = LocalBroker(say=say)
        if start_local:
            return broker.start(deadline)
        status = broker.status()
        if status.state != "running" or status.bootstrap is None:
            why = f"none is named, and the local broker is {status.state}"
            raise ConfigError([Problem(KEY, None, why, "start it with `weir broker start`, or name a broker")])
        return status.bootstrap
    check_broker(kafka, servers, deadline)
    return servers


def on_loopback(bootstrap: str) -> bool:
    """Whether every server of the list is on this machine's loopback."""
    return all(server.strip().startswith(LOOPBACK) for server in bootstrap.split(","))
