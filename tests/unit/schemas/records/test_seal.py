"""The seal on the wire."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import RecordRefused
from schemas.records import seal as seals
from schemas.records.seal import Seal, SealedSlot
from tests.fakes.records.damage import ANYTHING, damaged
from tests.fakes.records.make import UUID, digest_of


def make_seal(version: int = 12, slots: int = 3) -> Seal:
    shas = [digest_of(str(n)) for n in range(4)]
    entries = {s: SealedSlot(s % 2, s % 3, s % 2, 10 + s, shas[s % 4], shas[(s + 1) % 4]) for s in range(slots)}
    return Seal(UUID, 4, "c0ffee", version, entries)


VALUE = seals.encode(make_seal())


def decode(value: bytes, run: str = UUID, version: int = 12, slots: int = 3) -> Seal:
    return seals.decode(value, run=run, version=version, prompts_per_step=slots)


def reason_of(value: bytes, **expected: Any) -> str:
    with pytest.raises(RecordRefused) as refused:
        decode(value, **expected)
    return refused.value.reason


@pytest.mark.parametrize("slots", [1, 3, 70_000])
def test_a_seal_comes_back_as_it_was(slots: int) -> None:
    assert decode(seals.encode(make_seal(slots=slots)), slots=slots) == make_seal(slots=slots)


def test_slots_are_written_in_order_whatever_the_mappings() -> None:
    seal = make_seal()
    turned = Seal(seal.run, seal.incarnation, seal.config_digest, seal.version, dict(reversed(list(seal.slots.items()))))
    assert seals.encode(turned) == VALUE


def test_a_seal_of_something_else_is_refused() -> None:
    assert reason_of(VALUE, run="f" * 32) == "run"
    assert reason_of(VALUE, version=13) == "run"
    assert reason_of(VALUE, slots=2) == "slot"
    assert reason_of(VALUE, slots=4) == "slot"


SLOT = [0, 0, 0, 0, 10, b"0" * 32, b"1" * 32]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.update(schema="weir.seal/2"), "schema"),
        (lambda r: r.update(schema="weir.group/1"), "schema"),
        (lambda r: r.pop("slots"), "malformed"),
        (lambda r: r.pop("config_digest"), "malformed"),
        (lambda r: r.update(version=12.0), "malformed"),
        (lambda r: r.update(version="12"), "malformed"),
        (lambda r: r.update(run=[UUID]), "malformed"),
        (lambda r: r.update(incarnation="4"), "malformed"),
        (lambda r: r.update(incarnation=True), "malformed"),
        (lambda r: r.update(config_digest=None), "malformed"),
        (lambda r: r.update(slots=None), "malformed"),
        (lambda r: r.update(slots=3), "malformed"),
        (lambda r: r.update(slots={}), "slot"),
        (lambda r: r.update(slots=[]), "slot"),
        (lambda r: r["slots"].append(r["slots"][0]), "slot"),
        (lambda r: r["slots"].__setitem__(1, r["slots"][0]), "slot"),
        (lambda r: r["slots"].__setitem__(0, []), "malformed"),
        (lambda r: r["slots"].__setitem__(0, SLOT[:6]), "malformed"),
        (lambda r: r["slots"].__setitem__(0, [*SLOT, 1]), "malformed"),
        (lambda r: r["slots"].__setitem__(0, [-1, *SLOT[1:]]), "malformed"),
        (lambda r: r["slots"].__setitem__(0, [*SLOT[:4], -10, *SLOT[5:]]), "malformed"),
        (lambda r: r["slots"].__setitem__(0, [*SLOT[:4], 1.0, *SLOT[5:]]), "malformed"),
        (lambda r: r["slots"].__setitem__(0, [*SLOT[:5], b"0" * 31, SLOT[6]]), "malformed"),
        (lambda r: r["slots"].__setitem__(0, [*SLOT[:5], "0" * 32, SLOT[6]]), "malformed"),
        (lambda r: r["slots"].__setitem__(0, [*SLOT[:5], 7, SLOT[6]]), "malformed"),
        (lambda r: r["slots"].__setitem__(0, [[0], *SLOT[1:]]), "malformed"),
        (lambda r: r["slots"].__setitem__(0, b"0123456"), "malformed"),
    ],
)
def test_what_is_no_seal_is_refused(change: Callable[[dict[str, Any]], Any], reason: str) -> None:
    record = msgpack.unpackb(VALUE)
    change(record)
    assert reason_of(msgpack.packb(record)) == reason


@pytest.mark.parametrize("field", ["schema", "run", "incarnation", "slots"])
def test_lists_inside_lists_without_end_are_refused_and_break_nothing(field: str) -> None:
    record = msgpack.unpackb(VALUE) | {field: "HERE"}
    deep = msgpack.packb(record).replace(msgpack.packb("HERE"), b"\x91" * 1010 + b"\x01")
    assert reason_of(deep) == "malformed"


@settings(deadline=None)
@given(st.binary(max_size=100) | damaged(VALUE))
def test_any_bytes_are_a_seal_or_refused(value: bytes) -> None:
    with contextlib.suppress(RecordRefused):
        assert decode(value).slots.keys() == {0, 1, 2}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 6), ANYTHING.filter(lambda value: not isinstance(value, int) or abs(value) < 2**63))
def test_whatever_stands_in_a_slot_the_seal_is_read_or_refused(place: int, value: Any) -> None:
    record = msgpack.unpackb(VALUE)
    record["slots"][0][place] = value
    try:
        packed = msgpack.packb(record)
    except OverflowError:
        return
    try:
        decode(packed)
    except RecordRefused as refused:
        assert refused.reason in ("malformed", "slot")
