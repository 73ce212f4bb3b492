"""What makes a group unfit for training: each reason alone, from a group that is fit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import RecordRefused
from schemas.records import group as groups
from schemas.records.group import FinishReason, Span, TrajectoryGroup
from schemas.records.validity import Rules, accept, check
from tests.fakes.records.groups import RULES, encoded, make_group, make_multi_turn, make_trajectory, with_trajectory


def refusal(group: TrajectoryGroup, version: int = 12, rules: Rules = RULES) -> str:
    """Why the group is refused: the same reason from its bytes as from the object."""
    with pytest.raises(RecordRefused) as refused:
        accept(*encoded(group), version, rules)
    with pytest.raises(RecordRefused) as again:
        check(group, version, rules)
    assert again.value.reason == refused.value.reason
    return refused.value.reason


def logprobs(**at: float) -> np.ndarray[Any, Any]:
    values = make_multi_turn().logprobs.copy()
    for name, value in at.items():
        values[int(name[1:])] = value
    return values


def with_second(**changes: Any) -> TrajectoryGroup:
    """A group whose second trajectory has several turns, one of them under two versions, and is then changed."""
    return with_trajectory(make_multi_turn(**changes))


def test_a_fit_group_is_accepted_as_it_was_and_with_its_content_digest() -> None:
    group = with_second()
    found, content = accept(*encoded(group), 12, RULES)
    assert content == groups.content_sha256(group)
    assert groups.encode(found) == groups.encode(group)


def test_a_fit_validation_group_is_accepted() -> None:
    accept(*encoded(make_group(kind="validation", slot=5)), 12, RULES)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (make_group(run="f" * 32), "run"),
        (make_group(slot=4), "slot"),
        (make_group(row=make_group().row + 1), "row"),
        (make_group(draw=1, row=make_group(draw=0).row), "row"),
        (make_group(prompt=np.array([], dtype="<u4")), "length"),
        (make_group(prompt=np.array([[1, 2]], dtype="<u4")), "length"),
        (make_group(prompt=np.array(7, dtype="<u4")), "length"),
        (make_group(prompt=np.array([1, 100], dtype="<u4")), "vocabulary"),
        (make_group(trajectories=()), "members"),
        (make_group(trajectories=(make_trajectory(),)), "members"),
        (make_group(trajectories=(make_trajectory(),) * 3), "members"),
        (make_group(kind="validation", slot=0, trajectories=()), "members"),
        (make_group(kind="validation", slot=0, row=8), "row"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_group_must_be_of_its_slot_and_whole(group: TrajectoryGroup, reason: str) -> None:
    assert refusal(group) == reason


def test_a_group_of_another_version_is_refused() -> None:
    assert refusal(make_group(version=13)) == "version"


def test_the_row_belongs_to_version_slot_and_draw() -> None:
    rows = {make_group(version, slot, draw).row for version in (12, 13) for slot in range(4) for draw in range(3)}
    assert len(rows) > 12
    for draw in range(3):
        check(make_group(draw=draw, attempt=5), 12, RULES)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": np.array([7, 8, 9, 2, 50, 51, 100], dtype="<u4")}, "vocabulary"),
        ({"tokens": np.array([7, 8, 9], dtype="<u4")}, "length"),
        ({"mask": np.array([1, 1, 1, 1, 0, 0], dtype="|u1")}, "length"),
        ({"logprobs": np.array([-1.0], dtype="<f4")}, "length"),
        ({"tokens": np.array(7, dtype="<u4")}, "length"),
        ({"tokens": make_multi_turn().tokens.reshape(7, 1)}, "length"),
        ({"mask": np.array([1, 1, 1, 1, 0, 0, 2], dtype="|u1")}, "mask"),
        ({"mask": np.zeros(7, dtype="|u1"), "spans": ()}, "mask"),
        ({"logprobs": logprobs(_0=float("nan"))}, "logprobs"),
        ({"logprobs": logprobs(_3=float("inf"))}, "logprobs"),
        ({"logprobs": logprobs(_6=float("-inf"))}, "logprobs"),
        ({"logprobs": logprobs(_6=0.01)}, "logprobs"),
        ({"logprobs": logprobs(_4=float("nan"))}, "logprobs"),
        # As near to the bound as a float32 comes: one that is above it is refused in whatever form the group is checked.
        ({"logprobs": np.full(7, 1e-3, dtype="<f4"), "mask": np.ones(7, dtype="|u1"), "spans": (Span(12, 0, 7),)}, "logprobs"),
        ({"rewards": {}}, "reward"),
        ({"rewards": {"a": float("nan")}}, "reward"),
        ({"rewards": {"a": 1.0, "b": float("-inf")}}, "reward"),
        ({"rewards": {"a": 1e308, "b": 1e308}}, "reward"),
        ({"spans": ()}, "spans"),
        ({"spans": (Span(12, 0, 4),)}, "spans"),
        ({"spans": (Span(12, 0, 7),)}, "spans"),
        ({"spans": (Span(12, 0, 3), Span(12, 6, 7))}, "spans"),
        ({"spans": (Span(12, 0, 4), Span(12, 6, 8))}, "spans"),
        ({"spans": (Span(12, 0, 4), Span(12, 3, 4), Span(12, 6, 7))}, "spans"),
        ({"spans": (Span(12, 6, 7), Span(12, 0, 4))}, "spans"),
        ({"spans": (Span(12, 0, 4), Span(12, 6, 6), Span(12, 6, 7))}, "spans"),
        ({"spans": (Span(9, 0, 4), Span(12, 6, 7))}, "age"),
        ({"spans": (Span(12, 0, 4), Span(13, 6, 7))}, "age"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_trajectory_must_be_fit(changes: dict[str, Any], reason: str) -> None:
    assert refusal(with_second(**changes)) == reason


def test_a_refusal_names_the_trajectory() -> None:
    with pytest.raises(RecordRefused, match=r"age: trajectory 1: tokens of version 9, allowed 10 to 12"):
        check(with_second(spans=(Span(9, 0, 4), Span(12, 6, 7))), 12, RULES)


def test_prompt_and_response_share_the_models_length() -> None:
    exact = replace(RULES, max_total_length=3 + 7)
    check(with_second(), 12, exact)
    assert refusal(with_second(), rules=replace(RULES, max_total_length=9)) == "length"


def test_an_empty_response_is_refused() -> None:
    empty: dict[str, Any] = {
        "tokens": np.array([], dtype="<u4"),
        "mask": np.array([], dtype="|u1"),
        "logprobs": np.array([], dtype="<f4"),
    }
    assert refusal(with_second(**empty, spans=())) == "length"


def test_log_probabilities_may_exceed_zero_by_rounding() -> None:
    check(with_second(logprobs=logprobs(_0=9e-4)), 12, RULES)


@pytest.mark.parametrize("age", [0, 1, 2])
def test_every_age_up_to_the_bound_is_fit_and_one_more_is_not(age: int) -> None:
    aged = with_second(spans=(Span(12 - age, 0, 4), Span(12, 6, 7)))
    check(aged, 12, RULES)
    if age:
        assert refusal(aged, rules=replace(RULES, max_age=age - 1)) == "age"


def test_validation_takes_exactly_its_versions_weights() -> None:
    older = make_trajectory(11)
    assert refusal(make_group(kind="validation", slot=0, trajectories=(older,))) == "age"


def test_a_generator_without_end_has_its_ordinal_as_row() -> None:
    endless = replace(RULES, rows=None)
    check(make_group(row=12 * 4 + 3), 12, endless)
    assert refusal(make_group(row=7), rules=endless) == "row"


def test_truncated_trajectories_are_finished_ones() -> None:
    check(with_second(finish=FinishReason.LENGTH), 12, RULES)


def reason_of(value: bytes, headers: dict[str, bytes]) -> str:
    with pytest.raises(RecordRefused) as refused:
        accept(value, headers, 12, RULES)
    return refused.value.reason


def test_the_headers_must_be_those_of_the_record() -> None:
    value, headers = encoded(make_group())
    assert reason_of(value, {**headers, "sha256": b"0" * 64}) == "digest"
    assert reason_of(value, {**headers, "content_sha256": b"0" * 64}) == "digest"
    assert reason_of(value, {**headers, "sha256": b"\xff\xfe"}) == "digest"
    assert reason_of(value, {}) == "digest"
    assert reason_of(value + b"\0", headers) == "digest"


def test_a_record_that_is_too_large_is_refused_before_it_is_read() -> None:
    value, headers = encoded(make_group())
    with pytest.raises(RecordRefused, match="size"):
        accept(value, headers, 12, replace(RULES, max_record_bytes=len(value) - 1))
    accept(value, headers, 12, replace(RULES, max_record_bytes=len(value)))


def remade(change: Callable[[dict[str, Any]], None]) -> tuple[bytes, dict[str, bytes]]:
    """A record whose fields were changed after it was made, with the digest of its new bytes."""
    import hashlib

    value, headers = encoded(make_group())
    record = msgpack.unpackb(value)
    change(record)
    value = msgpack.packb(record)
    return value, {**headers, "sha256": hashlib.sha256(value).hexdigest().encode()}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.update(schema="weir.group/2"), "schema"),
        (lambda r: r.update(schema="weir.seal/1"), "schema"),
        (lambda r: r.pop("schema"), "schema"),
        (lambda r: r.update(kind="cancel"), "malformed"),
        (lambda r: r.update(prompt_sha256="0" * 64), "digest"),
        (lambda r: r.update(slot=-1), "malformed"),
        (lambda r: r.update(slot=True), "malformed"),
        (lambda r: r.update(slot="3"), "malformed"),
        (lambda r: r.pop("row"), "malformed"),
        (lambda r: r.update(trajectories=None), "malformed"),
        (lambda r: r.update(trajectories=[7, 8]), "malformed"),
        (lambda r: r["trajectories"][0].update(finish="failed"), "malformed"),
        (lambda r: r["trajectories"][0].update(spans=[[12, 0]]), "malformed"),
        (lambda r: r["trajectories"][0].update(spans=[[12, 0, -4]]), "malformed"),
        (lambda r: r["trajectories"][0].update(rewards={"a": "1.0"}), "malformed"),
        (lambda r: r["trajectories"][0].update(rewards={b"a": 1.0}), "malformed"),
        (lambda r: r["trajectories"][0].update(rewards={"a": None}), "malformed"),
        (lambda r: r["trajectories"][0].update(tokens=[1, 2, 3]), "malformed"),
        (lambda r: r["trajectories"][0]["logprobs"].update(dtype="<f8"), "malformed"),
        (lambda r: r["trajectories"][0]["tokens"].update(shape=[8]), "malformed"),
        (lambda r: r["trajectories"][0].update(extras={b"x": r["prompt"]}), "malformed"),
    ],
)
def test_records_of_another_form_are_refused(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    assert reason_of(*remade(change)) == reason


PATHS = [
    ("prompt",),
    ("prompt", "shape"),
    ("prompt", "data"),
    ("slot",),
    ("kind",),
    ("sampling",),
    ("trajectories",),
    ("trajectories", 0),
    ("trajectories", 1, "tokens"),
    ("trajectories", 1, "tokens", "shape"),
    ("trajectories", 1, "mask", "shape"),
    ("trajectories", 1, "rewards"),
    ("trajectories", 1, "spans"),
    ("trajectories", 1, "extras"),
    ("trajectories", 1, "finish"),
]
hostile = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.binary(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.sampled_from(PATHS), hostile)
def test_whatever_stands_in_a_field_the_group_is_fit_or_refused(path: tuple[str | int, ...], value: Any) -> None:
    def change(record: dict[str, Any]) -> None:
        node: Any = record
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value

    record, headers = remade(change)
    with contextlib.suppress(RecordRefused):
        accept(record, headers, 12, RULES)


@pytest.mark.parametrize(
    ("where", "dtype"),
    [("prompt", "<i4"), ("tokens", "<i8"), ("tokens", ">u4"), ("mask", "|b1"), ("mask", "<u4"), ("logprobs", "<f8")],
)
def test_arrays_have_the_dtype_of_their_field(where: str, dtype: str) -> None:
    def change(record: dict[str, Any]) -> None:
        holder = record if where == "prompt" else record["trajectories"][0]
        array = np.frombuffer(holder[where]["data"], dtype=holder[where]["dtype"]).astype(dtype)
        holder[where] = {**holder[where], "dtype": dtype, "data": array.tobytes()}

    value, headers = remade(change)
    with pytest.raises(RecordRefused, match=f"malformed: .*{where}"):
        accept(value, headers, 12, RULES)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"0" * 64])
def test_a_record_without_the_right_content_digest_is_refused(content: bytes | None) -> None:
    value, headers = encoded(make_group())
    del headers["content_sha256"]
    assert reason_of(value, headers if content is None else {**headers, "content_sha256": content}) == "digest"
