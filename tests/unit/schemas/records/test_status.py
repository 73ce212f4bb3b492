"""Records of `status`, `requests` and `metrics`: JSON records of one form."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import RecordRefused
from schemas.records import status
from schemas.records.json_record import JsonRecord
from schemas.records.metrics import StepMetrics
from schemas.records.quarantine import RAW_BYTES, Quarantined
from schemas.records.requests import Request
from schemas.records.status import Beat, FailureKind
from tests.fakes.records.make import (
    UUID,
    in_hand,
    key,
    make_ack,
    make_failed,
    make_heartbeat,
    make_left,
    make_operator,
    make_report,
    make_request,
)

RECORDS: list[Any] = [
    make_report(in_hand=[in_hand(key(3, 1, 0, 2))], incarnation=7, requests_partition=2, digest="w3"),
    make_heartbeat(work=[in_hand(key(3), tokens=5)]),
    make_ack(ok=False, error="reset by peer"),
    make_failed("p0", key(3), FailureKind.PROMPT),
    make_left(unfinished=[in_hand(key(3))]),
    Beat(uuid=UUID, incarnation=7, number=3),
    make_operator("drain", "p0"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind)
def test_a_record_comes_back_as_it_was(record: Any) -> None:
    assert status.decode(record.to_bytes()) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind)
def test_a_record_of_another_schema_is_refused_by_name(record: Any) -> None:
    other = json.loads(record.to_bytes()) | {"schema": "weir.status/9"}
    with pytest.raises(RecordRefused, match="schema"):
        status.decode(json.dumps(other).encode())


@pytest.mark.parametrize(
    "change",
    [{"kind": "bye"}, {"kind": None}, {"state": "asleep"}, {"held": "new"}, {"in_hand": [{"kind": "cancel"}]}, {"producer": 7}],
)
def test_another_form_is_refused(change: dict[str, Any]) -> None:
    record = json.loads(make_heartbeat().to_bytes()) | change
    with pytest.raises(RecordRefused):
        status.decode(json.dumps(record).encode())


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_are_refused_that_are_no_record(value: bytes) -> None:
    for decode in (status.decode, Request.from_bytes, StepMetrics.from_bytes):
        with pytest.raises(RecordRefused):
            decode(value)


@settings(deadline=None)
@given(st.sampled_from([*RECORDS, make_request()]), st.data())
def test_a_damaged_record_is_a_record_or_refused(record: JsonRecord, data: st.DataObject) -> None:
    value = bytearray(record.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    for decode in (status.decode, Request.from_bytes):
        with contextlib.suppress(RecordRefused):
            decode(bytes(value))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.sampled_from(RECORDS), st.data())
def test_whatever_stands_in_a_field_it_is_a_record_or_refused(record: JsonRecord, data: st.DataObject) -> None:
    fields = json.loads(record.to_bytes())
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(json_values)
    with contextlib.suppress(RecordRefused):
        status.decode(json.dumps(fields).encode())


@pytest.mark.parametrize("kind", ["rollout", "validation", "cancel"])
def test_a_request_comes_back_as_it_was(kind: str) -> None:
    request = make_request(at=key(12, 3, 1, 2), kind=kind)
    assert Request.from_bytes(request.to_bytes()) == request
    assert str(request.key) == "v00000012/s0003/d1/a2"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5])
def test_numbers_that_are_not_finite_come_back_as_such_and_are_written_as_json(value: float) -> None:
    record = StepMetrics(uuid=UUID, incarnation=0, step=1, seal_offset=2, config_digest="c", metrics={"train/grad_norm": value})
    json.loads(record.to_bytes(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    found = StepMetrics.from_bytes(record.to_bytes()).metrics["train/grad_norm"]
    assert found == value or (math.isnan(found) and math.isnan(value))
    gap = status.decode(make_ack(probe_gap=value).to_bytes())
    assert isinstance(gap, status.Ack) and str(gap.probe_gap) == str(value)


def test_quarantine_keeps_the_first_64_kib() -> None:
    import base64

    record = Quarantined.of(
        uuid=UUID, topic="t", partition=1, offset=2, key=None, sha256="s", reason="r", detail="d", value=b"x" * (RAW_BYTES + 1)
    )
    assert base64.b64decode(Quarantined.from_bytes(record.to_bytes()).raw) == b"x" * RAW_BYTES
