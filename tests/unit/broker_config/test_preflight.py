from __future__ import annotations

import pytest

from broker_config.preflight import parse_servers
from schemas.errors import ConfigError


@pytest.mark.parametrize("servers", ["", "host", "host:", ":9092", "host:x", "host:0", "host:70000", "a:1,,b:2"])
def test_a_malformed_server_list_is_one_problem(servers: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_servers(servers)
    assert [problem.key for problem in caught.value.problems] == ["kafka.bootstrap_servers"]
