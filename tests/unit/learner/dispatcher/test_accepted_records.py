"""The bytes of accepted records, until their version is trained."""

from __future__ import annotations

import pytest

from learner.dispatcher.serving.accepted_records import AcceptedRecords
from schemas.errors import LostData
from schemas.records.seal import Seal, SealedSlot
from tests.fakes.records.make import UUID, digest_of

TOPIC = "t-1.trajectories.v00000012"


def make_seal(*places: tuple[int, int, str]) -> Seal:
    """Slots 0, 1, ... at (partition, offset), whose bytes are the text."""
    entries = {slot: SealedSlot(0, 0, p, offset, digest_of(text), "c") for slot, (p, offset, text) in enumerate(places)}
    return Seal(UUID, 4, "c0ffee", 12, dict(reversed(entries.items())))


def kept() -> AcceptedRecords:
    records_kept = AcceptedRecords()
    records_kept.keep(TOPIC, 0, 5, b"five")
    records_kept.keep(TOPIC, 1, 5, b"other five")
    records_kept.keep(TOPIC, 0, 6, b"six")
    return records_kept


def test_sealed_records_come_in_slot_order() -> None:
    seal = make_seal((0, 6, "six"), (1, 5, "other five"), (0, 5, "five"))
    assert kept().of_seal(TOPIC, seal) == [b"six", b"other five", b"five"]


@pytest.mark.parametrize("place", [(0, 7, "six"), (1, 6, "six"), (2, 5, "five")])
def test_a_record_that_was_never_accepted_is_named(place: tuple[int, int, str]) -> None:
    says = rf"the seal of version 12 names {TOPIC}\[{place[0]}\] offset {place[1]}, slot 1, which holds no valid record"
    with pytest.raises(LostData, match=says):
        kept().of_seal(TOPIC, make_seal((0, 5, "five"), place))


def test_a_record_with_other_bytes_is_named() -> None:
    with pytest.raises(LostData, match=rf"{TOPIC}\[0\] offset 6, slot 1 is not the sealed one: sha256 differs"):
        kept().of_seal(TOPIC, make_seal((0, 5, "five"), (0, 6, "seven")))


def test_a_dropped_topic_takes_its_records_along_and_no_others() -> None:
    records_kept = kept()
    records_kept.keep("another", 0, 5, b"five")
    records_kept.drop(TOPIC)
    records_kept.drop("never kept")
    assert records_kept.of_seal("another", make_seal((0, 5, "five"))) == [b"five"]
    with pytest.raises(LostData, match="holds no valid record"):
        records_kept.of_seal(TOPIC, make_seal((0, 5, "five")))
