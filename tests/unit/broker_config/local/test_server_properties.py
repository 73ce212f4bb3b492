from __future__ import annotations

from pathlib import Path

from broker_config.local.server_properties import server_properties


def test_the_broker_listens_on_loopback_alone() -> None:
    properties = server_properties(Path("/data"), 29092, 29093, {})
    for listener in properties["listeners"].split(","):
        assert "://127.0.0.1:" in listener
    assert properties["auto.create.topics.enable"] == "false"


def test_given_properties_win() -> None:
    assert server_properties(Path("/data"), 1, 2, {"num.io.threads": "7"})["num.io.threads"] == "7"
