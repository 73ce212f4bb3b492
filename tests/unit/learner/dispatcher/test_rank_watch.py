"""Ranks of this host that are stopped, seen from the dispatcher."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from broker_config.deadline import Deadline
from learner.dispatcher.serving.rank_watch import HostRanks
from schemas.errors import WeirError
from tests.support import eventually

SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEPER, stdin=subprocess.PIPE)
    monkeypatch.setattr("os.getppid", lambda: process.pid)
    monkeypatch.setattr("learner.dispatcher.serving.rank_watch.LOOK_S", 0.0)
    yield process
    process.kill()
    process.communicate()


def test_a_parent_that_stands_still_for_too_long_is_killed_and_named(other: subprocess.Popen[bytes]) -> None:
    ranks = HostRanks(0.0)
    ranks.check()
    other.send_signal(signal.SIGSTOP)
    eventually(partial(is_stopped, other.pid), Deadline(20), "the stop")
    ranks.check()  # seen standing still for the first time
    with pytest.raises(WeirError, match=f"rank 0 .pid {other.pid}. was stopped"):
        ranks.check()
    assert other.wait(20) == -signal.SIGKILL


def test_another_rank_that_stands_still_for_too_long_is_killed_and_named_and_strangers_are_not(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with (
        subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as sibling,
        subprocess.Popen([*SLEEPER, "stranger"], stdin=subprocess.PIPE) as stranger,
    ):
        for process in (sibling, stranger):
            process.send_signal(signal.SIGSTOP)
            eventually(partial(is_stopped, process.pid), Deadline(20), "the stop")
        ranks = HostRanks(0.0)
        ranks.check()  # seen standing still for the first time
        ranks.check()
        assert sibling.wait(20) == -signal.SIGKILL
        assert f"a rank (pid {sibling.pid}) was stopped" in capsys.readouterr().err
        ranks.check()
        assert stranger.poll() is None
        stranger.kill()
    assert other.poll() is None


def test_one_that_goes_on_in_time_is_left_alone(other: subprocess.Popen[bytes]) -> None:
    ranks = HostRanks(1000)
    other.send_signal(signal.SIGSTOP)
    eventually(partial(is_stopped, other.pid), Deadline(20), "the stop")
    ranks.check()
    other.send_signal(signal.SIGCONT)
    eventually(lambda: not is_stopped(other.pid), Deadline(20), "its going on")
    ranks.check()
    assert other.poll() is None


def test_a_parent_that_is_gone_is_the_links_matter(other: subprocess.Popen[bytes]) -> None:
    ranks = HostRanks(0.0)
    other.kill()
    other.wait(20)
    ranks.check()
    ranks.check()
