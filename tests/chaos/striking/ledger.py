"""What became of a run's groups, from its log alone, and from what its producers were told was written.

Invariant of a run, whatever happens to its processes: what a producer was told is written stays; each version has one batch, the
first of its seals; each batch is trained once, and each trained version has one record of its outcome.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from learner.replay.sources.log import LogSource
from learner.replay.sources.sealed import SealedBatch
from schemas.config.kafka import KafkaConfig
from schemas.errors import WeirError
from schemas.identity import Attempt
from schemas.records.metrics import StepMetrics

Trained = tuple[int, int, int, str]
"""(version, slot, draw, digest of tokens, mask, log-probabilities and rewards)."""


class Log:
    """The topics of one run. Every batch that it gives has the records that its seal names, byte for byte."""

    def __init__(self, bootstrap: str, run_id: str, uuid: str, prompts_per_step: int) -> None:
        self._source = LogSource(KafkaConfig(), bootstrap, run_id, uuid, prompts_per_step, {})
        self._uuid = uuid

    def outcomes(self) -> list[StepMetrics]:
        """All records of `metrics`, in order; not only the first of each step."""
        records = self._source.records(self._source.topics.metrics)
        return [StepMetrics.from_bytes(record.value or b"") for record in records]

    def batch(self, version: int) -> SealedBatch:
        return self._source.batch(version)

    def trained(self, version: int) -> list[Trained]:
        slots = self.batch(version).seal.slots
        return [(version, slot, slots[slot].draw, slots[slot].content_sha256) for slot in sorted(slots)]

    def places(self, version: int) -> dict[tuple[int, int], Place]:
        """Every record of a version that is no seal, by partition and offset."""
        found = {}
        for record in self._source.records(self._source.topics.trajectories(version)):
            if record.header("kind") != b"seal":
                digest = hashlib.sha256(record.value or b"").hexdigest()
                place = Place(record.partition, record.offset, (record.key or b"").decode(), digest)
                found[place.partition, place.offset] = place
        return found

    def close(self) -> None:
        self._source.close()


@dataclass(frozen=True, slots=True)
class Place:
    """A group as it lies in its version's topic; `key` names the version. `offset` is -1 if the broker did not say it again."""

    partition: int
    offset: int
    key: str
    sha256: str

    def among(self, there: Mapping[tuple[int, int], Place]) -> bool:
        if self.offset >= 0:
            return there.get((self.partition, self.offset)) == self
        return any((self.partition, self.key, self.sha256) == (p.partition, p.key, p.sha256) for p in there.values())

    @property
    def attempt(self) -> Attempt:
        return Attempt.parse(self.key)


def read_acknowledged(files: Sequence[Path]) -> list[Place]:
    """What `tests.fakes.producer.witness` wrote down.

    The last line of a producer that was killed may be torn: it told nothing.
    """
    found = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                found.append(Place(**json.loads(line)))
    return found


@dataclass(slots=True)
class Ledger:
    """`lost` and `twice` say what, one line each; in a run that keeps its promises both are empty."""

    acknowledged: int = 0
    sealed: int = 0
    trained: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        return (
            f"acknowledged={self.acknowledged} sealed={self.sealed} trained={self.trained} lost={len(self.lost)} "
            f"twice={len(self.twice)}"
        )


def settle(log: Log, acknowledged: Sequence[Place], versions: int) -> Ledger:
    """The ledger of versions 0 to `versions` - 1, all of which must have been trained."""
    ledger = Ledger(acknowledged=len(acknowledged))
    told: dict[int, list[Place]] = {}
    for place in acknowledged:
        told.setdefault(place.attempt.version, []).append(place)
    contents: Counter[str] = Counter()
    outcomes = _by_step(log.outcomes(), ledger)
    for version in sorted({*range(versions), *told}):
        there = _there(log, version, ledger)
        ledger.lost += [f"acknowledged, and not in the log: {place}" for place in told.get(version, []) if not place.among(there)]
        if version < versions:
            _settle_version(log, version, there, outcomes.get(version), ledger, contents)
    ledger.twice += [f"content {digest} is in {count} batches" for digest, count in contents.items() if count > 1]
    return ledger


def _there(log: Log, version: int, ledger: Ledger) -> dict[tuple[int, int], Place]:
    try:
        return log.places(version)
    except WeirError as error:
        ledger.lost.append(str(error))
        return {}


def _by_step(outcomes: Sequence[StepMetrics], ledger: Ledger) -> dict[int, StepMetrics]:
    found: dict[int, StepMetrics] = {}
    for outcome in outcomes:
        if outcome.step in found:
            ledger.twice.append(f"step {outcome.step} has a second record, of incarnation {outcome.incarnation}")
        found.setdefault(outcome.step, outcome)
    return found


def _settle_version(
    log: Log,
    version: int,
    there: Mapping[tuple[int, int], Place],
    outcome: StepMetrics | None,
    ledger: Ledger,
    contents: Counter[str],
) -> None:
    try:
        batch = log.batch(version)
    except WeirError as error:
        ledger.lost.append(str(error))
        return
    ledger.sealed += len(batch.seal.slots)
    if outcome is None:
        ledger.lost.append(f"step {version} has no record")
    elif outcome.seal_offset != batch.seal_offset:
        ledger.lost.append(f"step {version} trained the seal at {outcome.seal_offset}, the first is at {batch.seal_offset}")
    else:
        ledger.trained += len(batch.seal.slots)
    # A prompt comes once, and its completions are made of its version, slot and draw: equal contents are one group.
    contents.update(entry.content_sha256 for entry in batch.seal.slots.values())
    first: dict[tuple[int, int], int] = {}
    for (_, offset), place in sorted(there.items()):
        first.setdefault((place.attempt.slot, place.attempt.draw), offset)
    for slot, entry in batch.seal.slots.items():
        if first.get((slot, entry.draw)) != entry.offset:
            at = first.get((slot, entry.draw))
            ledger.lost.append(f"version {version} slot {slot}: the group at {at} came first, sealed is {entry.offset}")


def steps_of(folder: Path) -> list[int]:
    """The steps in a run's `metrics.jsonl`, as they stand there."""
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
