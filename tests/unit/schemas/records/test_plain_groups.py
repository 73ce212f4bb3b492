"""Groups of the common form, one span a trajectory, are judged all at once: the same verdict as one trajectory after the other.

Nearly every group of a run without an environment's own tokens has this form, so a bound that is missing here is missing in
production. Each way of being unfit is tried in a group of plain trajectories alone, and in one where others have several spans.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import RecordRefused
from schemas.records import validity
from schemas.records.group import Span, Trajectory, TrajectoryGroup
from schemas.records.validity import LOGPROB_ROUNDING, Rules, check
from tests.fakes.records.groups import RULES, make_group, make_multi_turn, make_trajectory

VERSION = 12
F4 = np.float32


def plain(length: int = 5, version: int = VERSION, **changes: Any) -> Trajectory:
    """All tokens generated with one version's weights."""
    values: dict[str, Any] = {
        "tokens": np.arange(1, length + 1, dtype="<u4"),
        "mask": np.ones(length, dtype="|u1"),
        "logprobs": np.linspace(-2.0, -0.125, length, dtype="<f4"),
        "spans": (Span(version, 0, length),),
        "rewards": {"correct": 1.0},
    }
    return make_trajectory(version, **{**values, **changes})


def several_spans(version: int = VERSION) -> Trajectory:
    return make_multi_turn(version)


def verdict(group: TrajectoryGroup, rules: Rules = RULES) -> str | None:
    """Why a group is refused; None for a fit one."""
    try:
        check(group, VERSION, rules)
    except RecordRefused as refused:
        return str(refused)
    return None


def verdict_one_by_one(group: TrajectoryGroup, rules: Rules, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The same without the check of all at once."""
    with monkeypatch.context() as patch:
        patch.setattr(validity, "_plainly_valid", lambda *_: False)
        return verdict(group, rules)


def judged_at_once(group: TrajectoryGroup, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether no trajectory was looked at by itself."""

    def never(*_: Any) -> None:
        raise AssertionError("one by one")

    with monkeypatch.context() as patch:
        patch.setattr(validity, "_check_trajectory", never)
        try:
            check(group, VERSION, RULES)
        except AssertionError:
            return False
    return True


def changed(name: str, at: int, value: float) -> Callable[[Trajectory], Trajectory]:
    def change(t: Trajectory) -> Trajectory:
        array = getattr(t, name).copy()
        array[at] = value
        return replace(t, **{name: array})

    return change


def with_fields(**fields: Any) -> Callable[[Trajectory], Trajectory]:
    return lambda t: replace(t, **fields)


def spans(*found: Span) -> Callable[[Trajectory], Trajectory]:
    return with_fields(spans=found)


UNFIT: list[tuple[str, Callable[[Trajectory], Trajectory]]] = [
    ("vocabulary", changed("tokens", 2, 100)),
    ("mask", changed("mask", 1, 2)),
    ("spans", changed("mask", 1, 0)),
    ("mask", with_fields(mask=np.zeros(5, dtype="|u1"))),
    ("length", with_fields(mask=np.ones(4, dtype="|u1"))),
    ("length", with_fields(logprobs=np.zeros(6, dtype="<f4"))),
    ("length", with_fields(tokens=np.ones((5, 1), dtype="<u4"))),
    ("length", with_fields(tokens=np.array(1, dtype="<u4"))),
    ("length", with_fields(tokens=np.array([], "<u4"), mask=np.array([], "|u1"), logprobs=np.array([], "<f4"))),
    ("length", lambda t: plain(30)),
    ("logprobs", changed("logprobs", 0, 0.01)),
    ("logprobs", changed("logprobs", 0, float(np.nextafter(F4(LOGPROB_ROUNDING), F4(1))))),
    ("logprobs", changed("logprobs", 4, math.nan)),
    ("logprobs", changed("logprobs", 3, math.inf)),
    ("logprobs", changed("logprobs", 2, -math.inf)),
    ("reward", with_fields(rewards={})),
    ("reward", with_fields(rewards={"correct": math.nan})),
    ("reward", with_fields(rewards={"a": 1.0, "b": -math.inf})),
    ("reward", with_fields(rewards={"a": 1e308, "b": 1e308})),
    ("age", spans(Span(VERSION + 1, 0, 5))),
    ("age", spans(Span(VERSION - RULES.max_age - 1, 0, 5))),
    ("spans", spans(Span(VERSION, 1, 5))),
    ("spans", spans(Span(VERSION, 0, 4))),
    ("spans", spans(Span(VERSION, 0, 6))),
    ("spans", spans()),
]


@pytest.mark.parametrize("other", [plain, several_spans], ids=["plain", "mixed"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize(("reason", "change"), UNFIT, ids=[f"{reason}-{at}" for at, (reason, _) in enumerate(UNFIT)])
def test_an_unfit_trajectory_is_found_in_whatever_company(
    reason: str,
    change: Callable[[Trajectory], Trajectory],
    first: bool,
    other: Callable[[], Trajectory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = (change(plain()), other()) if first else (other(), change(plain()))
    group = make_group(trajectories=members)
    found = verdict(group)
    assert found is not None and found.startswith(f"{reason}: trajectory {0 if first else 1}: ")
    assert found == verdict_one_by_one(group, RULES, monkeypatch)


@pytest.mark.parametrize(
    "edge",
    [
        plain(1),
        plain(RULES.max_total_length - 3),
        plain(version=VERSION - RULES.max_age),
        changed("tokens", 0, RULES.vocab_size - 1)(plain()),
        changed("tokens", 0, 0)(plain()),
        changed("logprobs", 0, 0.0)(plain()),
        changed("logprobs", 0, float(np.nextafter(F4(LOGPROB_ROUNDING), F4(0))))(plain()),
        changed("logprobs", 0, float(np.finfo(F4).min))(plain()),
        with_fields(rewards={"a": -1e308, "b": 0.0})(plain()),
    ],
)
def test_what_is_just_fit_is_accepted_at_once(edge: Trajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    for members in ((edge, plain()), (plain(), edge)):
        group = make_group(trajectories=members)
        assert verdict(group) is None and verdict_one_by_one(group, RULES, monkeypatch) is None
        assert judged_at_once(group, monkeypatch)


def test_a_plain_validation_group_takes_exactly_its_versions_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = make_group(kind="validation", slot=0, trajectories=(plain(),))
    assert verdict(fit) is None and judged_at_once(fit, monkeypatch)
    older = make_group(kind="validation", slot=0, trajectories=(plain(version=VERSION - 1),))
    assert verdict(older) == "age: trajectory 0: tokens of version 11, allowed 12 to 12"


def test_groups_of_several_spans_are_not_judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not judged_at_once(make_group(trajectories=(plain(), several_spans())), monkeypatch)


# --- anything at all ------------------------------------------------------------------------------------------------------------

numbers = st.sampled_from([0.0, -0.5, 9e-4, 1e-3, 1.1e-3, math.nan, math.inf, -math.inf, -1e38])


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Near the bounds on both sides, in every respect."""
    length = draw(st.integers(0, 4) | st.sampled_from([28, 29, 30]))
    size = st.sampled_from([length] * 6 + [length + 1])
    tokens = np.array(draw(st.lists(st.sampled_from([0, 1, 99, 100]), min_size=length, max_size=length)), dtype="<u4")
    masks, logprobs = draw(size), draw(size)
    versions = st.sampled_from([9, 10, 11, 12, 12, 12, 13])
    spans_ = draw(
        st.just((Span(draw(versions), 0, length),))
        | st.lists(st.builds(Span, versions, st.integers(0, 3), st.integers(0, 5)), max_size=3).map(tuple)
    )
    return make_trajectory(
        tokens=tokens,
        mask=np.array(draw(st.lists(st.sampled_from([1, 1, 1, 0, 2]), min_size=masks, max_size=masks)), dtype="|u1"),
        logprobs=np.array(draw(st.lists(numbers, min_size=logprobs, max_size=logprobs)), dtype="<f4"),
        spans=spans_,
        rewards=draw(st.dictionaries(st.sampled_from("ab"), st.sampled_from([1.0, 1e308, math.nan, -math.inf]), max_size=2)),
    )


@settings(deadline=None, max_examples=300)
@given(st.lists(trajectories() | st.builds(plain, st.integers(1, 5)), min_size=2, max_size=2))
def test_both_ways_of_judging_agree_on_anything(members: list[Trajectory]) -> None:
    group = make_group(trajectories=tuple(members))
    with pytest.MonkeyPatch.context() as patch:
        assert verdict(group) == verdict_one_by_one(group, RULES, patch)
