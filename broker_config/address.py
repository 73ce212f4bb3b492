"""The address at which this host's peers reach it: that of its route to the broker."""

from __future__ import annotations

import socket

from broker_config.locate import configured_servers, on_loopback
from schemas.config.kafka import KafkaConfig

LOOPBACK = "127.0.0.1"


def listen_address(kafka: KafkaConfig) -> str:
    """Loopback if the broker is there, as then every process is on this machine; else this host's address towards the broker."""
    servers = configured_servers(kafka)
    if servers is None or on_loopback(servers):
        return LOOPBACK
    host, _, port = servers.split(",")[0].strip().rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))  # UDP: chooses a route, sends nothing
        address: str = probe.getsockname()[0]
    return address
