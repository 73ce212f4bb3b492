"""Records of `requests`: all that decides what is sampled, and nothing that a producer's own config could change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.grpo import GenerationConfig
from schemas.errors import RecordRefused
from schemas.identity import Attempt
from schemas.records.requests import Request, SamplingParameters
from tests.fakes.records.damage import damaged, damaged_json
from tests.fakes.records.make import key, make_request

VALUE = make_request(at=key(12, 3, 1, 2)).to_bytes()


@pytest.mark.parametrize(
    "request_",
    [
        make_request(at=key(12, 3, 1, 2)),
        make_request(at=key(12), kind="validation"),
        make_request(at=key(12), kind="cancel", cancels="validation"),
        make_request(sampling=SamplingParameters(n=1, max_new_tokens=9, temperature=0.0, top_p=0.5, top_k=3, stop=["é\n"])),
    ],
    ids=["rollout", "validation", "cancel", "sampling"],
)
def test_a_request_comes_back_as_it_was(request_: Request) -> None:
    assert Request.from_bytes(request_.to_bytes()) == request_


def test_a_requests_key_is_that_of_the_group_it_asks_for() -> None:
    assert make_request(at=key(12, 3, 1, 2)).key == Attempt(12, 3, 1, 2)


def test_a_request_carries_every_sampling_parameter_of_the_config() -> None:
    assert GenerationConfig.model_fields.keys() <= SamplingParameters.model_fields.keys()


def test_a_request_holds_ids_and_no_prompt() -> None:
    assert not {"prompt", "tokens", "messages"} & json.loads(VALUE).keys()
    assert len(VALUE) < 500


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": "weir.request/2"}, "schema"),
        ({"kind": "train"}, "malformed"),
        ({"T": None}, "malformed"),
        ({"slot": 1.5}, "malformed"),
        ({"producer": 7}, "malformed"),
        ({"sampling": {"n": 2}}, "malformed"),
        ({"sampling": []}, "malformed"),
        ({"cancels": "cancel"}, "malformed"),
    ],
)
def test_another_form_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecordRefused) as refused:
        Request.from_bytes(json.dumps(json.loads(VALUE) | change).encode())
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "missing", ["uuid", "kind", "producer", "incarnation", "T", "slot", "draw", "attempt", "row", "min_version"]
)
def test_a_request_lacks_nothing(missing: str) -> None:
    fields = json.loads(VALUE)
    del fields[missing]
    with pytest.raises(RecordRefused, match=f"malformed: {missing}: Field required"):
        Request.from_bytes(json.dumps(fields).encode())


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=100) | damaged(VALUE) | damaged_json(VALUE))
def test_any_bytes_are_a_request_or_refused(value: bytes) -> None:
    try:
        request = Request.from_bytes(value)
    except RecordRefused as refused:
        assert refused.reason in ("malformed", "schema")
    else:
        assert Request.from_bytes(request.to_bytes()) == request
