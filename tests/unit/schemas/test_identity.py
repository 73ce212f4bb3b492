"""Names of things."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import RecordRefused
from schemas.identity import Attempt, new_producer, new_uuid, seal_key

attempts = st.builds(
    Attempt, st.integers(0, 10**8 - 1), st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1)
)


def test_keys_are_readable() -> None:
    assert str(Attempt(12, 31, 0, 2)) == "v00000012/s0031/d0/a2"
    assert str(Attempt(12, 123456, 10, 0)) == "v00000012/s123456/d10/a0"
    assert seal_key(12) == "v00000012/seal"


@settings(deadline=None)
@given(attempts)
def test_a_key_is_its_attempt(attempt: Attempt) -> None:
    assert Attempt.parse(str(attempt)) == attempt


@settings(deadline=None)
@given(st.integers(0, 10**8 - 2), st.integers(0, 9998))
def test_keys_sort_like_their_attempts(version: int, slot: int) -> None:
    ordered = [Attempt(version, slot, 0, 9), Attempt(version, slot + 1, 0, 0), Attempt(version + 1, 0, 0, 0)]
    assert sorted(map(str, ordered)) == [str(attempt) for attempt in sorted(ordered)] == [str(attempt) for attempt in ordered]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v00000012/seal",
        "v12/s0031/d0/a0",
        "v00000012/s31/d0/a0",
        "v00000012/s0031/d0",
        "v00000012/s0031/d0/a0/",
        " v00000012/s0031/d0/a0",
        "v00000012/s0031/d0/a0\n",
        "v00000012/s0031/d-1/a0",
        "v00000012/s0031/d0/a" + "9" * 10,
        "v\u0660\u0660\u0660\u0660\u0660\u0660\u0661\u0662/s0031/d0/a0",
    ],
)
def test_other_keys_are_refused(text: str) -> None:
    with pytest.raises(RecordRefused, match="is not of the form v00000012/s0031/d0/a0") as refused:
        Attempt.parse(text)
    assert refused.value.reason == "malformed"


@settings(deadline=None)
@given(st.text() | st.from_regex(r"v\d{7,9}/s\d+/d\d+/a\d+", fullmatch=True))
def test_any_text_is_a_key_or_refused(text: str) -> None:
    try:
        attempt = Attempt.parse(text)
    except RecordRefused:
        return
    assert Attempt.parse(str(attempt)) == attempt


def test_a_producer_is_new_at_each_start_and_a_uuid_each_time() -> None:
    assert re.fullmatch(r"producer-0-[0-9a-f]{8}", new_producer("producer-0"))
    assert re.fullmatch(r"[0-9a-f]{32}", new_uuid())
    assert len({new_producer("p") for _ in range(100)} | {new_uuid() for _ in range(100)}) == 200
