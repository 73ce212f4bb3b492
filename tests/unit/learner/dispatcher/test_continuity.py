"""What counts as lost data of a run that is to go on from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from broker_config.clients.admin import LogBounds, TopicInfo
from broker_config.topics import Topics
from learner.checkpoint.manifest import Manifest, Offsets
from learner.dispatcher.takeover.continuity import Holdings, Loss, find_losses, first_lost, lost_data, sealed_versions
from schemas.records.control import State
from schemas.records.seal import Seal, SealedSlot
from tests.fakes.learner.facts import FACTS

TOPICS = Topics("r")
SINGLE = (TOPICS.control, TOPICS.status, TOPICS.requests, TOPICS.metrics, TOPICS.quarantine)
SHA = "ab" * 32


def topic(version: int) -> str:
    return TOPICS.trajectories(version)


# A checkpoint of version 10; 10 to 12 are sealed, 13 is open.
MANIFEST = Manifest(
    run="u", version=10, incarnation=3, topic_ids={TOPICS.control: "id", topic(9): "old", topic(10): "id", topic(11): "id"},
    next_offsets=Offsets(control=40, status=90), state_digest="s", weights_digest="w", config_digest="c", determinism=FACTS,
)  # fmt: skip
STATE = State(uuid="u", incarnation=3, config_digest="c", frontier=12, sealed_through=12, window={13: "id"})


def seal(version: int) -> Seal:
    return Seal("u", 3, "c", version, {slot: SealedSlot(0, 0, slot % 2, 5 + slot // 2, SHA, SHA) for slot in range(4)})


def whole() -> Holdings:
    names = [*SINGLE, *(topic(version) for version in range(10, 14))]
    bounds = {(TOPICS.control, 0): LogBounds(0, 60), (TOPICS.status, 0): LogBounds(80, 200)}
    bounds |= {(topic(version), partition): LogBounds(0, 8) for version in range(10, 13) for partition in range(2)}
    return Holdings({name: TopicInfo(name, "id", 2) for name in names}, bounds, {v: seal(v) for v in range(10, 13)})


def changed(field: str, *gone: Any, **put: Any) -> Holdings:
    holdings = whole()
    value: Mapping[Any, Any] = getattr(holdings, field)
    return replace(holdings, **{field: {k: v for k, v in value.items() if k not in gone} | dict(put.get("put", {}))})


def losses(holdings: Holdings, state: State | None = STATE) -> list[Loss]:
    return find_losses(TOPICS, MANIFEST, state, holdings)


def test_a_whole_run_has_lost_nothing_and_needs_nothing_below_its_checkpoint() -> None:
    assert losses(whole()) == []
    assert list(sealed_versions(MANIFEST, STATE)) == [10, 11, 12]


@pytest.mark.parametrize(
    ("holdings", "version", "says"),
    [
        (changed("topics", topic(10)), 10, "topic r.trajectories.v00000010 is gone (its id was id)"),
        (changed("topics", topic(12)), 12, "topic r.trajectories.v00000012 is gone"),
        (changed("topics", topic(13)), 13, "topic r.trajectories.v00000013 is gone (its id was id)"),
        (
            changed("topics", put={topic(11): TopicInfo(topic(11), "new", 2)}),
            11,
            "topic r.trajectories.v00000011 was deleted and made again: its id is new, the run's had id",
        ),
        (changed("seals", put={11: None}), 11, "r.trajectories.v00000011[0] has no seal of version 11, which was sealed"),
        (
            changed("bounds", put={(topic(12), 1): LogBounds(6, 8)}),
            12,
            "r.trajectories.v00000012[1] offset 5, slot 1 of the seal, is lost: the log has offsets 6 to 7",
        ),
        (
            changed("bounds", put={(topic(12), 0): LogBounds(0, 6)}),
            12,
            "r.trajectories.v00000012[0] offset 6, slot 2 of the seal, is lost: the log has offsets 0 to 5",
        ),
        (changed("topics", TOPICS.status), None, "topic r.status is gone"),
        (
            changed("bounds", put={(TOPICS.control, 0): LogBounds(0, 30)}),
            None,
            "r.control[0] offset 40, where the checkpoint stood, is outside the log: its log has offsets 0 to 29",
        ),
        (
            changed("bounds", put={(TOPICS.status, 0): LogBounds(0, 0)}),
            None,
            "r.status[0] offset 90, where the checkpoint stood, is outside the log: its log is empty",
        ),
    ],
)
def test_each_loss_is_told_by_topic_partition_and_offset(holdings: Holdings, version: int | None, says: str) -> None:
    (loss,) = losses(holdings)
    assert loss.text.startswith(says)
    assert loss.version == version


def test_other_bytes_than_the_sealed_ones_are_a_loss_once_they_were_read() -> None:
    places = {(topic(v), e.partition, e.offset): e.sha256 for v in range(10, 13) for e in seal(v).slots.values()}
    assert losses(replace(whole(), digests=places)) == []
    places[topic(11), 1, 6] = "cd" * 32
    (loss,) = losses(replace(whole(), digests=places))
    assert loss.version == 11
    assert loss.text.startswith("r.trajectories.v00000011[1] offset 6, slot 3 of the seal, is not the record that was sealed")
    assert SHA in loss.text


def test_versions_that_were_announced_were_sealed_whatever_the_last_state_says() -> None:
    behind = STATE.model_copy(update={"frontier": 13, "sealed_through": 9, "window": {}})
    assert [loss.version for loss in losses(changed("seals", put={12: None}), behind)] == [12]
    assert (
        losses(
            changed("topics", topic(12), topic(13)),
            STATE.model_copy(update={"frontier": None, "sealed_through": 9, "window": {}}),
        )
        == []
    )


def test_without_a_state_the_topics_of_the_checkpoint_are_needed() -> None:
    assert losses(Holdings({}, {}, {}), None) == [
        *(Loss(f"topic {name} is gone" + (" (its id was id)" if name == TOPICS.control else "")) for name in SINGLE),
        Loss(f"topic {topic(10)} is gone (its id was id)", 10),
        Loss(f"topic {topic(11)} is gone (its id was id)", 11),
    ]


def test_all_losses_are_one_error_with_the_way_out() -> None:
    found = losses(changed("topics", topic(11), topic(12), TOPICS.metrics))
    assert first_lost(found) == 11
    told = str(lost_data("r", found, 11, "broker:9092"))
    assert told.splitlines()[0] == "data of run r is lost on the broker at broker:9092; nothing was changed:"
    assert [line.split()[1] for line in told.splitlines()[1:4]] == [TOPICS.metrics, topic(11), topic(12)]
    assert "--resume --accept-loss; versions from 11 on are then generated and trained anew" in told
    assert "anew" not in str(lost_data("r", found[:1], None, "broker:9092"))
