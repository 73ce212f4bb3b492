"""The local broker, as far as it shows without starting one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from broker_config.deadline import Deadline
from broker_config.local import ports
from broker_config.local.broker import LocalBroker
from broker_config.local.installation import Installation
from schemas.errors import ConfigError


def test_a_taken_port_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_config.local.broker.install", lambda say: Installation(Path("/java"), ()))
    [port] = ports.free_ports(1, first=25000)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        with pytest.raises(ConfigError, match=f"{port}: another process listens on it"):
            LocalBroker(tmp_path, port=port).start(Deadline(5))


def test_a_folder_where_nothing_ran_is_stopped(tmp_path: Path) -> None:
    local = LocalBroker(tmp_path)
    assert local.status().state == "stopped"
    assert local.bootstrap is None
    assert not local.stop(Deadline(1))
    assert not local.kill()
