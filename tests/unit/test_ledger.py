"""The books of a run that was struck: what is missing or doubled in the log is told."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from learner.replay.sources.sealed import SealedBatch
from schemas.errors import WeirError
from schemas.identity import Attempt
from schemas.records.metrics import StepMetrics
from schemas.records.seal import Seal, SealedSlot
from tests.chaos.striking.ledger import Place, read_acknowledged, settle
from tests.fakes.records.make import UUID

N = 2


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def place(version: int, slot: int, offset: int | None = None, attempt: int = 0) -> Place:
    key = str(Attempt(version, slot, 0, attempt))
    return Place(0, slot if offset is None else offset, key, digest(key))


class FakeLog:
    """Two versions of two slots each; a seal behind its groups."""

    def __init__(self) -> None:
        self.there = {v: [place(v, slot) for slot in range(N)] for v in range(2)}
        self.steps = [outcome(0), outcome(1)]
        self.contents: dict[tuple[int, int], str] = {}

    def outcomes(self) -> list[StepMetrics]:
        return self.steps

    def places(self, version: int) -> dict[tuple[int, int], Place]:
        if version not in self.there:
            raise WeirError(f"no topic of version {version}")
        return {(p.partition, p.offset): p for p in self.there[version]}

    def batch(self, version: int) -> SealedBatch:
        slots = {
            slot: SealedSlot(0, 0, 0, slot, digest("x"), self.contents.get((version, slot), digest(f"{version}/{slot}")))
            for slot in range(N)
        }
        return SealedBatch(version, Seal(UUID, 0, "c", version, slots), N, [b"x"] * N)


def outcome(step: int, **changes: Any) -> StepMetrics:
    plain = StepMetrics(uuid=UUID, incarnation=0, step=step, seal_offset=N, config_digest="c", metrics={})
    return plain.model_copy(update=changes)


def books(log: FakeLog, acknowledged: Sequence[Place] = (), versions: int = 2) -> Any:
    return settle(log, acknowledged, versions)  # type: ignore[arg-type]


def test_a_run_that_kept_everything_has_empty_lists() -> None:
    found = books(FakeLog(), [place(0, 0), place(1, 1)])
    assert found.line == "acknowledged=2 sealed=4 trained=4 lost=0 twice=0"


@pytest.mark.parametrize("at", [7, -1])
def test_a_group_that_was_acknowledged_and_is_not_there_is_lost(at: int) -> None:
    missing = replace(place(0, 1, offset=at), sha256=digest("another"))
    (line,) = books(FakeLog(), [missing]).lost
    assert "v00000000/s0001" in line


def test_one_whose_place_was_not_told_again_is_looked_for_by_its_bytes() -> None:
    assert books(FakeLog(), [place(0, 1, offset=-1)]).lost == []


def test_what_was_acknowledged_of_a_version_without_a_topic_is_lost() -> None:
    topic, group = books(FakeLog(), [place(5, 0)]).lost
    assert topic == "no topic of version 5" and "v00000005/s0000" in group


def test_a_step_without_a_record_is_not_trained() -> None:
    log = FakeLog()
    log.steps = [outcome(0)]
    found = books(log)
    assert (found.trained, found.lost) == (N, ["step 1 has no record"])


def test_a_step_that_trained_another_seal_than_the_first_is_told() -> None:
    log = FakeLog()
    log.steps[1] = outcome(1, seal_offset=9)
    assert "trained the seal at 9" in books(log).lost[0]


def test_a_step_that_was_told_twice_is_twice() -> None:
    log = FakeLog()
    log.steps.append(outcome(1, incarnation=4))
    assert books(log).twice == ["step 1 has a second record, of incarnation 4"]


def test_a_group_that_is_in_two_batches_is_twice() -> None:
    log = FakeLog()
    log.contents = {(0, 0): digest("same"), (1, 1): digest("same")}
    assert len(books(log).twice) == 1


def test_a_group_that_came_first_and_is_not_sealed_is_told() -> None:
    log = FakeLog()
    log.there[1] = [place(1, 0), place(1, 1), place(1, 1, offset=9, attempt=1)]
    assert books(log).lost == []
    log.there[1] = [place(1, 1, offset=0, attempt=1), place(1, 1), place(1, 0, offset=2)]
    assert len(books(log).lost) == 2


def test_a_torn_line_tells_nothing(tmp_path: Any) -> None:
    file = tmp_path / "producer"
    file.write_text('{"partition": 0, "offset": 3, "key": "k", "sha256": "d"}\n{"partition": 0, "off')
    assert read_acknowledged([file]) == [Place(0, 3, "k", "d")]
