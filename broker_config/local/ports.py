"""Ports for a broker: below the ephemeral range, so that no outgoing connection holds the broker's port when it comes back.

On an ephemeral port, a client that retries a dead broker can even connect to itself, which keeps the broker from binding.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from schemas.errors import ConfigError, Problem

FIRST = 29092
LOW = 20000  # many well-known services have ports below
EPHEMERAL_LOW_DEFAULT = 32768


def ephemeral_low() -> int:
    """The first port that the system hands out to outgoing connections."""
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    except OSError:
        return EPHEMERAL_LOW_DEFAULT
    return int(text.split()[0])


def is_free(port: int) -> bool:
    """Whether a listener could bind the port on loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the broker does, so that lingering connections of a former one do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_ports(count: int, *, first: int = FIRST, avoid: Iterable[int] = ()) -> list[int]:
    """`count` free ports below the ephemeral range, searched upwards from `first`, then from `LOW`.

    Raises:
        ConfigError: there are not enough.
    """
    high = ephemeral_low()
    taken = set(avoid)
    start = first if LOW <= first < high else LOW
    candidates = [*range(start, high), *range(LOW, start)]
    found: list[int] = []
    for port in candidates:
        if port not in taken and is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    why = f"fewer than {count} free ports between {LOW} and {high}"
    raise ConfigError([Problem("local broker port", None, why, "free some, or set kafka.bootstrap_servers")])
