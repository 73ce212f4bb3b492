"""Advantages of a group."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.grpo.advantages import group_advantages, mean_and_std

REWARDS = st.lists(st.floats(-100, 100), min_size=2, max_size=16)


def test_equal_rewards_have_no_advantage_whatever_their_value() -> None:
    for value in (0.1, 0.95, 1e9 + 0.1):
        for leave_one_out in (False, True):
            assert group_advantages([value] * 7, leave_one_out=leave_one_out, normalize=True) == [0.0] * 7


def test_equal_siblings_have_a_deviation_of_exactly_zero() -> None:
    found = group_advantages([0.0] + [0.95] * 7, leave_one_out=True, normalize=True)
    assert found[0] == -0.95


def test_leave_one_out_baseline_is_the_mean_of_the_others() -> None:
    assert group_advantages([1.0, 2.0, 3.0], leave_one_out=True, normalize=False) == [-1.5, 0.0, 1.5]


def test_a_group_of_one_has_no_advantage() -> None:
    assert group_advantages([3.0], leave_one_out=True, normalize=True) == [0.0]


@given(REWARDS)
def test_deviation_is_that_of_the_standard_library(rewards: list[float]) -> None:
    mean, std = mean_and_std(rewards)
    assert mean == pytest.approx(statistics.fmean(rewards), abs=1e-9)
    assert std == pytest.approx(statistics.stdev(rewards), rel=1e-9, abs=1e-9)


@given(REWARDS, st.booleans(), st.booleans())
def test_advantages_order_as_rewards_do_and_sum_to_zero_around_the_mean(rewards: list[float], loo: bool, normalize: bool) -> None:
    found = group_advantages(rewards, leave_one_out=loo, normalize=normalize)
    if not loo:
        assert sum(found) == pytest.approx(0.0, abs=1e-6)
        assert [a for _, a in sorted(zip(rewards, found, strict=True))] == sorted(found)
    best, worst = max(range(len(rewards)), key=rewards.__getitem__), min(range(len(rewards)), key=rewards.__getitem__)
    assert found[best] >= 0 >= found[worst]
