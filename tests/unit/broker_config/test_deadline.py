from __future__ import annotations

import math

import pytest

from broker_config.deadline import Deadline, wait_until
from schemas.errors import DeadlineExceeded
from tests.fakes.clock import Clock


def test_remaining_counts_down_to_zero_and_not_below() -> None:
    clock = Clock()
    deadline = Deadline(5, clock)
    assert deadline.remaining() == 5
    clock.now += 2
    assert deadline.remaining() == 3
    clock.now += 10
    assert deadline.remaining() == 0


def test_a_deadline_expires_at_its_moment() -> None:
    clock = Clock()
    deadline = Deadline(5, clock)
    clock.now += 4.999
    assert not deadline.expired
    deadline.check("a record")
    clock.now += 0.001
    assert deadline.expired
    with pytest.raises(DeadlineExceeded, match="waited 5 s for a record"):
        deadline.check("a record")


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0])
def test_no_deadline_cannot_be_expressed(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Deadline(seconds)


def test_a_step_ends_no_later_than_the_whole() -> None:
    clock = Clock()
    whole = Deadline(5, clock)
    clock.now += 3
    assert whole.at_most(1).remaining() == 1
    assert whole.at_most(60).remaining() == 2


def test_a_pause_ends_with_the_wait() -> None:
    clock = Clock()
    deadline = Deadline(5, clock, clock.sleep)
    deadline.pause(3)
    deadline.at_most(1).pause(3)
    deadline.pause(3)
    assert clock.slept == [3, 1, 1]
    assert deadline.expired


def test_wait_until_asks_until_it_holds() -> None:
    clock = Clock()
    answers = iter([False, False, True])
    wait_until(lambda: next(answers), Deadline(10, clock, clock.sleep), "the third answer", interval_s=4)
    assert list(answers) == []
    assert clock.slept == [4, 4]


def test_wait_until_asks_at_least_once_and_names_what_it_waited_for() -> None:
    asked: list[int] = []

    def ask() -> bool:
        asked.append(1)
        return False

    with pytest.raises(DeadlineExceeded, match="for a miracle"):
        wait_until(ask, Deadline(0), "a miracle")
    assert asked == [1]
