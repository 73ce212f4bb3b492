"""The form of a group on the wire."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import RecordRefused
from schemas.records import group as groups
from schemas.records.group import FinishReason, Span, Trajectory, TrajectoryGroup
from tests.fakes.records.groups import make_group, make_multi_turn, make_trajectory


def assert_alike(a: TrajectoryGroup, b: TrajectoryGroup) -> None:
    """Equal in every field; arrays in dtype, shape and bits."""
    for name in TrajectoryGroup.__slots__:
        if name not in ("prompt", "trajectories"):
            assert getattr(a, name) == getattr(b, name), name
    assert_same_array(a.prompt, b.prompt)
    assert len(a.trajectories) == len(b.trajectories)
    for left, right in zip(a.trajectories, b.trajectories, strict=True):
        assert (left.spans, left.finish, left.rewards) == (right.spans, right.finish, right.rewards)
        assert left.extras.keys() == right.extras.keys()
        for name in ("tokens", "mask", "logprobs"):
            assert_same_array(getattr(left, name), getattr(right, name))
        for name in left.extras:
            assert_same_array(left.extras[name], right.extras[name])


def assert_same_array(a: Any, b: Any) -> None:
    assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    length = draw(st.integers(1, 12))
    spans, at = [], 0
    while at < length and draw(st.booleans()):
        end = draw(st.integers(at + 1, length))
        spans.append(Span(draw(st.integers(0, 2**40)), at, end))
        at = end
    return make_trajectory(
        tokens=draw(st.lists(st.integers(0, 2**32 - 1), min_size=length, max_size=length)),
        mask=draw(st.lists(st.integers(0, 255), min_size=length, max_size=length)),
        logprobs=draw(st.lists(st.floats(width=32), min_size=length, max_size=length)),
        spans=spans,
        finish=draw(st.sampled_from(FinishReason)),
        rewards=draw(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3)),
        extras={"experts": np.arange(length, dtype="<i8")} if draw(st.booleans()) else {},
    )


@settings(deadline=None)
@given(st.lists(trajectories(), max_size=3), st.integers(0, 2**63), st.sampled_from(["rollout", "validation"]))
def test_a_group_comes_back_as_it_was(members: list[Trajectory], number: int, kind: str) -> None:
    group = make_group(slot=number, kind=kind, trajectories=tuple(members), incarnation=number)
    assert_alike(groups.decode(groups.encode(group)), group)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_group_or_refused(value: bytes) -> None:
    try:
        groups.decode(value)
    except RecordRefused as refused:
        assert refused.reason in ("malformed", "schema", "digest")


@settings(deadline=None)
@given(st.data())
def test_a_damaged_record_is_a_group_or_refused(data: st.DataObject) -> None:
    value = bytearray(groups.encode(make_group()))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(value)))
    for damaged in (bytes(value), bytes(value[:cut]), bytes(value[cut:])):
        with contextlib.suppress(RecordRefused):
            groups.decode(damaged)


@pytest.mark.parametrize(
    "value",
    [
        msgpack.packb([1, 2]),
        msgpack.packb({"schema": "weir.group/1"}),
        msgpack.packb({1: 2}),
        b"\xdd\xff\xff\xff\xff",  # a list of 4 billion that is not there
        b"\x91" * 2000,  # deep nesting
        msgpack.packb(msgpack.ExtType(1, b"x")),
        b"",
    ],
)
def test_other_msgpack_is_refused(value: bytes) -> None:
    with pytest.raises(RecordRefused):
        groups.decode(value)


def test_versions_of_tokens_follow_the_spans() -> None:
    trajectory = make_multi_turn()
    assert trajectory.token_versions().tolist() == [11, 11, 12, 12, -1, -1, 12]
    assert (trajectory.oldest_version, trajectory.generated_tokens, trajectory.reward) == (11, 5, 1.25)
    group = make_group(trajectories=(trajectory, make_multi_turn(spans=(Span(10, 0, 4), Span(13, 6, 7)))))
    assert (group.oldest_version, group.generated_tokens) == (10, 10)


def test_truncation_is_a_matter_of_the_finish_reason_alone() -> None:
    assert [make_trajectory(finish=reason).truncated for reason in FinishReason] == [False, True, False]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"producer": "another", "seconds": 9.0, "incarnation": 9, "sampling": {}, "attempt": 4, "run": "other"}, True),
        ({"prompt": np.array([1, 5, 7], dtype="<u4")}, False),
        ({"rewards": (1.0, 0.5)}, False),
        ({"trajectories": (make_trajectory(), make_trajectory(rewards=0.0, logprobs=(-0.5, -0.5, -1)))}, False),
        ({"trajectories": (make_trajectory(), make_trajectory(rewards=0.0, tokens=(7, 8, 3)))}, False),
        ({"trajectories": (make_trajectory(), make_trajectory(rewards=0.0, mask=(1, 1, 0)))}, False),
        ({"trajectories": (make_trajectory(), make_trajectory(rewards=0.0))}, True),
    ],
)
def test_the_content_digest_is_of_what_training_depends_on(changes: dict[str, Any], same: bool) -> None:
    assert (groups.content_sha256(make_group(**changes)) == groups.content_sha256(make_group())) is same


def test_the_order_of_reward_components_does_not_change_the_content() -> None:
    one = make_group(trajectories=(make_trajectory(rewards={"a": 1.0, "b": 2.0}),))
    other = make_group(trajectories=(make_trajectory(rewards={"b": 2.0, "a": 1.0}),))
    assert groups.content_sha256(one) == groups.content_sha256(other)
