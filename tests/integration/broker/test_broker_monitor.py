"""Watching a broker while a run uses it: its end, its silence and its return are reported, and a start that is cut short leaves
nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from broker_config.clients import admin
from broker_config.clients.admin import TopicInfo, create_topics
from broker_config.clients.settings import make_admin
from broker_config.clients.writer import LogWriter
from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.locate import ENVIRONMENT
from broker_config.topics import version_spec
from launch.processes.broker import BrokerUse, use_broker
from launch.supervise.broker_monitor import BrokerMonitor
from launch.supervise.events import BrokerBack, BrokerLost
from schemas.config.kafka import KafkaConfig
from tests.own_cache import make_cache
from tests.support import eventually


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerUse]:
    """A local broker that was started on demand."""
    monkeypatch.setenv("WEIR_CACHE", str(make_cache(tmp_path)))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with use_broker(KafkaConfig(), lambda line: None) as found:
        assert found.on_demand
        yield found
    assert LocalBroker().status().state == "stopped"


@contextmanager
def monitored(use: BrokerUse, topics: Callable[[], Collection[str]] = tuple) -> Iterator[BrokerMonitor]:
    monitor = BrokerMonitor(use, KafkaConfig(), topics)
    monitor.start()
    try:
        yield monitor
    finally:
        monitor.close()


def test_a_broker_that_was_killed_comes_back_where_it_was(use: BrokerUse) -> None:
    assert use.local is not None
    with monitored(use) as monitor:
        before = monitor.pids()
        assert monitor.events() == []
        use.local.kill()
        (lost,) = eventually(monitor.events, 10, "the end to be reported")
        assert isinstance(lost, BrokerLost) and lost.ended and "has ended" in lost.detail
        monitor.restart()
        assert eventually(monitor.events, 60, "the return to be reported") == [BrokerBack()]
        assert monitor.pids() == {use.local.pid} != before
        assert use.local.bootstrap == use.bootstrap


def test_a_start_that_is_cut_short_leaves_no_broker(use: BrokerUse) -> None:
    assert use.local is not None
    with monitored(use) as monitor:
        use.local.kill()
        eventually(monitor.events, 10, "the end to be reported")
        monitor.restart()
        eventually(lambda: use.local is not None and use.local.pid, 30, "a process to be started")
    eventually(lambda: use.local is not None and use.local.pid is None, 10, "the process to be gone")


def test_a_broker_that_hangs_is_reported_and_so_is_its_return(use: BrokerUse) -> None:
    assert use.process is not None
    process = psutil.Process(use.process.pid)
    with monitored(use) as monitor:
        process.send_signal(signal.SIGSTOP)
        try:
            (lost,) = eventually(monitor.events, 30, "the silence to be reported")
        finally:
            process.send_signal(signal.SIGCONT)
        assert lost == BrokerLost(f"the broker at {use.bootstrap} does not answer")
        assert eventually(monitor.events, 30, "the return to be reported") == [BrokerBack()]


def test_a_broker_whose_disk_is_full_names_the_topic_and_the_room_and_what_was_not_written_comes_when_it_is_back(
    use: BrokerUse,
) -> None:
    assert use.local is not None and use.process is not None
    kafka, refused = KafkaConfig(), list[BaseException]()
    (topic,) = create_topics(
        make_admin(kafka, use.bootstrap, "tests"), [version_spec("full", "trajectories", 3, kafka)], Deadline(30)
    )
    writer = LogWriter(kafka, use.bootstrap, "tests", refused.append)
    writer.write(topic, b"first").result(30)
    with monitored(use, lambda: [topic]) as monitor:
        # No file of the broker may grow beyond this, as if its disk were full.
        psutil.Process(use.process.pid).rlimit(psutil.RLIMIT_FSIZE, (500_000, 500_000))
        late = writer.write(topic, os.urandom(600_000))
        (lost,) = eventually(monitor.events, 30, "the end to be reported")
        assert isinstance(lost, BrokerLost) and lost.ended and lost.full
        assert f"has ended: appending records to {topic}-0 in dir {use.local.root}" in lost.detail
        assert "File too large" in lost.detail and "MiB free" in lost.detail
        monitor.restart()
        assert eventually(monitor.events, 60, "the return to be reported") == [BrokerBack()]
        assert late.result(60) == 1
    writer.close(Deadline(30))
    assert refused == []


def test_topics_that_nobody_leads_are_reported(use: BrokerUse, monkeypatch: pytest.MonkeyPatch) -> None:
    led = [TopicInfo("r.control", "id", 1), TopicInfo("r.status", "id", 2, (1,))]
    found = list(led)
    monkeypatch.setattr(
        admin, "describe", lambda client, names, deadline: {info.name: info for info in found if info.name in names}
    )
    monkeypatch.setattr("launch.supervise.broker_monitor.SILENT_S", 1.0)
    with monitored(use, lambda: ["r.control", "r.status", "r.gone"]) as monitor:
        (lost,) = eventually(monitor.events, 30, "the partition to be reported")
        assert isinstance(lost, BrokerLost) and not lost.ended
        assert "serves, but nobody leads r.status[1]: one of its nodes is down, or a disk of it is full" in lost.detail
        found[1] = TopicInfo("r.status", "id", 2)
        assert eventually(monitor.events, 30, "the leader to be reported") == [BrokerBack()]
