"""Judging records of version topics: what is trained, what goes to quarantine, and when a seal is told."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker_config.clients.reader import Record
from learner.dispatcher.deciding.events import GroupRead, GroupRefused, SealRead
from learner.dispatcher.serving.intake import Intake
from learner.dispatcher.state.slots import Kind
from schemas.identity import Attempt, seal_key
from schemas.records import group as groups
from schemas.records import seal as seals
from schemas.records.group import TrajectoryGroup
from schemas.records.headers import as_mapping, of_group, of_seal
from schemas.records.quarantine import RAW_BYTES, Quarantined
from schemas.records.seal import Seal, SealedSlot
from tests.fakes.records.groups import RULES, make_group, make_trajectory, with_trajectory
from tests.fakes.records.make import UUID, digest_of

TOPIC = "t-1.trajectories.v00000012"
QUARANTINE = "t-1.quarantine"
PARTITIONS = 2


@dataclass
class Posted:
    """Stands for the writer: keeps what is posted."""

    records: list[tuple[str, Quarantined, str | None]] = field(default_factory=list)

    def post(self, topic: str, value: bytes, *, key: str | None = None) -> None:
        self.records.append((topic, Quarantined.from_bytes(value), key))


@dataclass
class Reading:
    """An intake and what it has posted."""

    partitions: int = PARTITIONS
    posted: Posted = field(default_factory=Posted)

    def __post_init__(self) -> None:
        self.intake = Intake(RULES, self.partitions, QUARANTINE, self.posted)  # type: ignore[arg-type]

    def judge(self, record: Record, kind: Kind = "rollout", version: int = 12) -> list[GroupRead | GroupRefused | SealRead]:
        return self.intake.judge(record, kind, version)

    @property
    def refused(self) -> list[Quarantined]:
        return [record for _, record, _ in self.posted.records]


def group_record(group: TrajectoryGroup, offset: int, topic: str = TOPIC, **changes: Any) -> Record:
    value = groups.encode(group)
    values: dict[str, Any] = {
        "topic": topic,
        "partition": group.request.slot % PARTITIONS,
        "offset": offset,
        "key": str(group.request),
        "value": value,
        "headers": as_mapping(of_group(group, value)),
        "timestamp_ms": 0,
    }
    return Record(**{**values, **changes})


def make_seal(version: int = 12, places: Sequence[int] = (0, 0, 1, 1), incarnation: int = 4) -> Seal:
    """Slot s at offset places[s] of its partition."""
    sha = digest_of("x")
    return Seal(
        UUID, incarnation, "c", version, {s: SealedSlot(0, 0, s % PARTITIONS, at, sha, sha) for s, at in enumerate(places)}
    )


def seal_record(seal: Seal, offset: int, topic: str = TOPIC, **changes: Any) -> Record:
    value = seals.encode(seal)
    values: dict[str, Any] = {
        "topic": topic,
        "partition": 0,
        "offset": offset,
        "key": seal_key(seal.version),
        "value": value,
        "headers": as_mapping(of_seal(seal, value)),
        "timestamp_ms": 0,
    }
    return Record(**{**values, **changes})


def test_a_valid_group_is_told_with_where_it_lies_and_its_digests() -> None:
    reading = Reading()
    record = group_record(make_group(slot=3), 17)
    (event,) = reading.judge(record)
    assert isinstance(event, GroupRead)
    assert event.group.request == Attempt(12, 3, 0, 0)
    assert (event.partition, event.offset) == (1, 17)
    assert event.sha256 == hashlib.sha256(record.value).hexdigest()
    assert event.content_sha256 == groups.content_sha256(make_group(slot=3))
    assert reading.refused == []


def test_a_refused_group_is_counted_and_quarantined_with_its_place_and_bytes() -> None:
    reading = Reading()
    record = group_record(with_trajectory(make_trajectory(rewards={})), 17)
    assert reading.judge(record) == [GroupRefused("rollout", 12, "v00000012/s0003/d0/a0", "producer-0-abcd1234", "reward")]
    ((topic, quarantined, key),) = reading.posted.records
    assert (topic, key) == (QUARANTINE, record.key)
    assert quarantined == Quarantined(
        uuid=UUID,
        topic=TOPIC,
        partition=1,
        offset=17,
        key=record.key,
        sha256=hashlib.sha256(record.value).hexdigest(),
        reason="reward",
        detail="trajectory 1: rewards {}",
        raw=base64.b64encode(record.value).decode(),
    )


@pytest.mark.parametrize("key", [None, "", "hello", "v12/s3", "v00000012/seal"])
def test_bytes_of_anything_are_refused_and_nobody_is_blamed(key: str | None) -> None:
    reading = Reading()
    record = group_record(make_group(), 17, key=key, value=b"\x00" * (RAW_BYTES + 9), headers={})
    assert reading.judge(record) == [GroupRefused("rollout", 12, None, None, "digest")]
    assert base64.b64decode(reading.refused[0].raw) == b"\x00" * RAW_BYTES


def test_what_is_quarantined_stays_small_whatever_the_record_quotes() -> None:
    reading = Reading()
    group = with_trajectory(make_trajectory(rewards={"a" * 200_000: float("nan")}))
    reading.judge(group_record(group, 17, key="k" * 200_000))
    assert len(reading.refused[0].to_bytes()) < 100_000
    assert len(reading.refused[0].detail) <= 1000


def test_a_group_in_another_slots_partition_is_refused() -> None:
    (event,) = Reading().judge(group_record(make_group(slot=3), 17, partition=0))
    assert isinstance(event, GroupRefused) and event.reason == "slot"


@pytest.mark.parametrize(("kind", "topic"), [("rollout", "validation"), ("validation", "rollout")])
def test_a_group_in_the_topic_of_the_other_kind_is_refused(kind: str, topic: Kind) -> None:
    (event,) = Reading().judge(group_record(make_group(kind=kind, slot=1), 17), topic)
    assert isinstance(event, GroupRefused)
    assert (event.kind, event.reason) == (topic, "version")


def test_judging_a_record_again_says_the_same() -> None:
    record = group_record(with_trajectory(make_trajectory(rewards={})), 17)
    reading = Reading()
    assert reading.judge(record) == reading.judge(record) == Reading().judge(record)


def test_a_seal_is_told_once_all_that_it_names_has_been_judged() -> None:
    reading = Reading()
    seal = make_seal()
    for record in (group_record(make_group(slot=0), 0), group_record(make_group(slot=2), 1)):
        (event,) = reading.judge(record)
        assert isinstance(event, GroupRead)
    assert reading.judge(seal_record(seal, 2)) == []
    assert [type(event) for event in reading.judge(group_record(make_group(slot=1), 0))] == [GroupRead]
    group, told = reading.judge(group_record(make_group(slot=3), 1))
    assert isinstance(group, GroupRead)
    assert told == SealRead(seal, 2)


def test_a_seal_whose_groups_are_judged_is_told_at_once_and_only_once() -> None:
    reading = Reading()
    for slot in range(4):
        reading.judge(group_record(make_group(slot=slot), slot // 2))
    assert reading.judge(seal_record(make_seal(), 2)) == [SealRead(make_seal(), 2)]
    (late,) = reading.judge(group_record(make_group(slot=0, attempt=1), 3))
    assert isinstance(late, GroupRead)


def test_the_first_seal_of_a_version_counts_whoever_wrote_it() -> None:
    reading = Reading(partitions=1)
    first, second = make_seal(places=(0, 0, 0, 0)), make_seal(places=(0, 0, 0, 0), incarnation=9)
    one = {slot: SealedSlot(0, 0, 0, 0, s.sha256, s.content_sha256) for slot, s in first.slots.items()}
    first, second = (Seal(s.run, s.incarnation, s.config_digest, s.version, one) for s in (first, second))
    reading.judge(group_record(make_group(slot=0), 0, partition=0))
    assert reading.judge(seal_record(first, 1)) == [SealRead(first, 1)]
    assert reading.judge(seal_record(second, 2)) == []
    assert reading.refused == []


def test_a_seal_that_is_not_well_formed_is_quarantined_and_the_next_one_counts() -> None:
    reading = Reading()
    for slot in range(4):
        reading.judge(group_record(make_group(slot=slot), slot // 2))
    assert reading.judge(seal_record(make_seal(version=13), 2)) == []
    assert reading.judge(seal_record(make_seal(), 3, value=b"no seal")) == []
    assert reading.judge(seal_record(make_seal(places=(0, 0, 1)), 4)) == []
    assert [record.reason for record in reading.refused] == ["run", "malformed", "slot"]
    assert reading.judge(seal_record(make_seal(), 5)) == [SealRead(make_seal(), 5)]


def test_a_seal_outside_partition_0_is_none() -> None:
    reading = Reading()
    for slot in range(4):
        reading.judge(group_record(make_group(slot=slot), slot // 2))
    assert reading.judge(seal_record(make_seal(), 2, partition=1)) == []
    assert reading.judge(seal_record(make_seal(), 2)) == [SealRead(make_seal(), 2)]


def test_seals_of_two_versions_wait_for_their_own_groups() -> None:
    reading = Reading()
    other = "t-1.trajectories.v00000013"
    assert reading.judge(seal_record(make_seal(), 2)) == []
    assert reading.judge(seal_record(make_seal(13), 2, other), version=13) == []
    told: list[object] = []
    for slot in range(4):
        told += reading.judge(group_record(make_group(13, slot), slot // 2, other), version=13)
    assert [event.seal.version for event in told if isinstance(event, SealRead)] == [13]


def test_a_topic_that_is_forgotten_takes_its_seal_along() -> None:
    reading = Reading()
    reading.judge(seal_record(make_seal(), 2))
    reading.intake.forget(TOPIC)
    told = [event for slot in range(4) for event in reading.judge(group_record(make_group(slot=slot), slot // 2))]
    assert {type(event) for event in told} == {GroupRead}


def test_a_topic_that_is_read_again_from_its_start_is_judged_again_before_its_seal_is_told() -> None:
    reading = Reading()
    for slot in range(4):
        reading.judge(group_record(make_group(slot=slot), slot // 2))
    reading.intake.forget(TOPIC)
    assert reading.judge(seal_record(make_seal(), 2)) == []
