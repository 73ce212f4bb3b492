from __future__ import annotations

import socket

from broker_config.local import ports


def test_ports_are_free_distinct_and_outside_the_ephemeral_range() -> None:
    found = ports.free_ports(3)
    assert len(set(found)) == 3
    assert all(ports.LOW <= port < ports.ephemeral_low() for port in found)


def test_a_bound_port_is_not_free() -> None:
    [port] = ports.free_ports(1, first=25000)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        assert not ports.is_free(port)
        assert port not in ports.free_ports(2, first=port)
    assert ports.is_free(port)
