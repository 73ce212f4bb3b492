"""Looking after a broker while a run uses it: its end, its silence and its return are told, and a start that is cut short leaves
nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from broker_config.local_broker import LocalBroker
from broker_config.locate import ENVIRONMENT
from launch.broker import BrokerUse, use_broker
from launch.broker_care import BrokerCare
from launch.events import BrokerBack, BrokerLost
from schemas.config import KafkaConfig
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
def looked_after(use: BrokerUse) -> Iterator[BrokerCare]:
    care = BrokerCare(use, KafkaConfig())
    care.begin()
    try:
        yield care
    finally:
        care.close()


def test_a_broker_that_was_killed_comes_back_where_it_was(use: BrokerUse) -> None:
    assert use.local is not None
    with looked_after(use) as care:
        before = care.pids()
        assert care.news() == []
        use.local.kill()
        (lost,) = eventually(care.news, 10, "the end to be told")
        assert isinstance(lost, BrokerLost) and lost.ended and "has ended" in lost.detail
        care.start_again()
        assert eventually(care.news, 60, "the return to be told") == [BrokerBack()]
        assert care.pids() == {use.local.pid} != before
        assert use.local.bootstrap == use.bootstrap


def test_a_start_that_is_cut_short_leaves_no_broker(use: BrokerUse) -> None:
    assert use.local is not None
    with looked_after(use) as care:
        use.local.kill()
        eventually(care.news, 10, "the end to be told")
        care.start_again()
        eventually(lambda: use.local is not None and use.local.pid, 30, "a process to be started")
    eventually(lambda: use.local is not None and use.local.pid is None, 10, "the process to be gone")


def test_a_broker_that_hangs_is_told_of_and_so_is_its_return(use: BrokerUse) -> None:
    assert use.process is not None
    process = psutil.Process(use.process.pid)
    with looked_after(use) as care:
        process.send_signal(signal.SIGSTOP)
        try:
            (lost,) = eventually(care.news, 30, "the silence to be told")
        finally:
            process.send_signal(signal.SIGCONT)
        assert lost == BrokerLost(f"the broker at {use.bootstrap} does not answer")
        assert eventually(care.news, 30, "the return to be told") == [BrokerBack()]
