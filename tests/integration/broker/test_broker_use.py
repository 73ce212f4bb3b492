"""A broker on demand: it runs as long as somebody here uses it, and not longer, however they end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.locate import ENVIRONMENT
from launch.processes.broker import in_use, keep, use_broker
from schemas.config.kafka import KafkaConfig
from schemas.errors import ConfigError
from tests.own_cache import make_cache
from tests.paths import ROOT
from tests.support import eventually

# A supervisor with one process that takes a while to end, and then says whether it still had the broker.
SUPERVISOR = """
import sys, time
from pathlib import Path
from launch.processes.broker import Keeper, use_broker
from launch.processes.children import Child
from launch.processes.specs import ProcessSpec
from schemas.config.kafka import KafkaConfig
import os
folder = Path(sys.argv[1])
with Keeper(60) as keeper, use_broker(KafkaConfig(), print) as broker:
    keeper.guard(broker)
    spec = ProcessSpec("child", [sys.executable, "-c", sys.argv[2]], dict(os.environ), folder / "child.log", 20)
    child = Child(spec, Path.cwd(), broker.keep_open)
    (folder / "ready").write_text(broker.bootstrap)
    time.sleep(300)
"""
CHILD = """
import signal, socket, sys, time
def leave(*_):
    time.sleep(3)
    host, port = HOST.split(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    print("the broker served to the end", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("listening", flush=True)
time.sleep(300)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalBroker]:
    """The default local broker of a cache folder that is this test's own."""
    monkeypatch.setenv("WEIR_CACHE", str(make_cache(tmp_path)))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    broker = LocalBroker()
    assert broker.root == (tmp_path / "cache" / "kafka" / "broker").resolve()
    yield broker
    broker.stop(Deadline(30))


def say(line: str) -> None:
    """What it reports is of no interest here."""


def test_the_last_user_stops_a_broker_that_was_started_on_demand(cache: LocalBroker) -> None:
    with use_broker(KafkaConfig(), say) as first:
        assert first.process is not None and first.process.alive()
        with use_broker(KafkaConfig(), say) as second:
            assert second.bootstrap == first.bootstrap
            assert in_use(cache)
        assert cache.status().state == "running"
        cache.kill()
        assert not first.process.alive()
    assert cache.status().state == "stopped"
    assert not in_use(cache)


def test_a_broker_that_a_person_started_stays(cache: LocalBroker) -> None:
    cache.start(Deadline(60))
    keep(cache)
    with use_broker(KafkaConfig(), say):
        pass
    assert cache.status().state == "running"


def test_a_configured_broker_that_is_not_there_is_wrong_input_and_starts_none(cache: LocalBroker) -> None:
    kafka = KafkaConfig(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(ConfigError, match="nobody listens"), use_broker(kafka, say):
        pass
    assert cache.status().state == "stopped"


def test_a_killed_supervisor_leaves_no_broker_but_lets_its_processes_end_first(cache: LocalBroker, tmp_path: Path) -> None:
    known = cache.start(Deadline(60))
    cache.stop(Deadline(30))
    child = CHILD.replace("HOST", repr(known))
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path), child]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        log = tmp_path / "child.log"
        eventually(lambda: log.exists() and "listening" in log.read_text(), 60, "the child to start")
        assert (tmp_path / "ready").read_text() == known
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    eventually(lambda: cache.status().state == "stopped", 40, "the keeper to stop the broker")
    assert "the broker served to the end" in log.read_text()
