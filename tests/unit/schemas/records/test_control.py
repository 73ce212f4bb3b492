"""Records of `control`."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import RecordRefused
from schemas.records import control
from schemas.records.control import Claim, Round, State, Stop, TransferGroup
from tests.fakes.records.make import make_claim, make_dataset, make_state


def full_state() -> State:
    group = TransferGroup(host="h", port=1, prefix="p", nccl_id=None, world=3, members={"p0": 1, "p1": 2})
    return make_state(
        "p0",
        "p1",
        frontier=12,
        weights_digest="w12",
        sealed_through=11,
        last_version=40,
        window={12: "id12", 13: "id13"},
        validations={12: "vid12"},
        dataset=make_dataset(),
        refused={"p9": ["model: other"]},
        round=Round(number=3, version=12, mode="keep", phase="transfer", members=["p0", "p1"], groups=[group]),
        stop=Stop(reason="because", version=12, resumable=True),
    )


@pytest.mark.parametrize("record", [make_claim(), make_state(), full_state()], ids=["claim", "empty", "full"])
def test_a_record_comes_back_as_it_was(record: Claim | State) -> None:
    assert control.decode(record.to_bytes()) == record


def test_versions_are_numbers_again_although_json_has_texts_as_keys() -> None:
    decoded = control.decode(full_state().to_bytes())
    assert isinstance(decoded, State)
    assert list(decoded.window) == [12, 13]


def test_keys_that_a_later_writer_adds_are_ignored() -> None:
    record = json.loads(full_state().to_bytes())
    record["later"] = {"a": 1}
    record["round"]["later"] = 2
    assert control.decode(json.dumps(record).encode()) == full_state()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": "weir.control/2"}, "schema"),
        ({"schema": "weir.status/1"}, "schema"),
        ({"schema": None}, "schema"),
        ({"kind": "pause"}, "schema"),
        ({"incarnation": None}, "malformed"),
        ({"incarnation": "last"}, "malformed"),
        ({"window": [12]}, "malformed"),
        ({"members": {"p0": None}}, "malformed"),
        ({"round": {"number": 1}}, "malformed"),
    ],
)
def test_another_form_is_refused(change: dict[str, object], reason: str) -> None:
    record = json.loads(full_state().to_bytes()) | change
    with pytest.raises(RecordRefused) as refused:
        control.decode(json.dumps(record).encode())
    assert refused.value.reason == reason


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_are_refused_that_are_no_record(value: bytes) -> None:
    with pytest.raises(RecordRefused):
        control.decode(value)


@settings(deadline=None)
@given(st.data())
def test_a_damaged_record_is_a_record_or_refused(data: st.DataObject) -> None:
    value = bytearray(full_state().to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RecordRefused):
        control.decode(bytes(value))


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        make_state().frontier = 3  # type: ignore[misc]
