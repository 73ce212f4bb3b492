from __future__ import annotations

import signal
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from schemas.failpoints import ONCE, VARIABLE, Failpoints


def test_a_point_strikes_at_the_passing_that_is_asked_for_and_never_again() -> None:
    points = Failpoints({VARIABLE: "learner.forward=SIGKILL@2"})
    assert [points.due("learner.forward") for _ in range(4)] == [None, signal.SIGKILL, None, None]


def test_other_points_and_other_ranks_are_left_alone() -> None:
    points = Failpoints({VARIABLE: "learner.forward=SIGKILL/1", "RANK": "0"})
    assert points.due("learner.forward") is None
    assert points.due("learner.optimizer") is None
    assert Failpoints({VARIABLE: "learner.forward=SIGKILL/1", "RANK": "1"}).due("learner.forward") is signal.SIGKILL


def test_with_a_folder_a_point_strikes_once_over_all_processes(tmp_path: Path) -> None:
    environment = {VARIABLE: "producer.publish=SIGSTOP", ONCE: str(tmp_path)}
    assert Failpoints(environment).due("producer.publish") is signal.SIGSTOP
    assert Failpoints(environment).due("producer.publish") is None
    assert (tmp_path / "producer.publish").exists()


@pytest.mark.parametrize(
    "text", ["learner.forwad=SIGKILL", "learner.forward", "learner.forward=KILL", "learner.forward=SIGKILL@x"]
)
def test_what_is_no_failpoint_is_refused_with_the_entry(text: str) -> None:
    with pytest.raises(ConfigError, match="WEIR_FAILPOINTS"):
        Failpoints({VARIABLE: text})
