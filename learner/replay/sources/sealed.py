"""The batch of a version as its topic holds it: the first well-formed seal, and the records that it names.

Invariant: nothing is trained again whose bytes are not those that the seal names. Pure: others read the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker_config.clients.stored import StoredRecord
from learner.checkpoint.kept_config import kept_config
from schemas.errors import ConfigError, Problem, RecordRefused, WeirError
from schemas.records import seal as seals
from schemas.records.metrics import StepMetrics
from schemas.records.seal import Seal, SealedSlot


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """`records[slot]` is the value of the slot's group, byte for byte what was trained."""

    version: int
    seal: Seal
    seal_offset: int
    records: Sequence[bytes]


class Source(Protocol):
    """Where the records of a run are read."""

    @property
    def where(self) -> str:
        """The place in words, for a person."""

    def step_metrics(self) -> Mapping[int, StepMetrics]:
        """What the run recorded of its steps, by step.

        Raises:
            WeirError: a record cannot be read.
        """

    def batch(self, version: int) -> SealedBatch:
        """
        Raises:
            WeirError: the version has no seal, or not all of its records as they were sealed.
        """

    def close(self) -> None: ...


def follow(records: Iterable[StoredRecord], topic: str, *, run: str, version: int, prompts_per_step: int) -> SealedBatch:
    """The batch of `version` from all records of its topic.

    Raises:
        WeirError: no seal, or a record that it names is missing or has other bytes; names the record and its slot.
    """
    bodies: dict[tuple[int, int], bytes] = {}
    found: tuple[Seal, int] | None = None
    passed: list[str] = []
    for record in records:
        if record.header("kind") != b"seal":
            bodies[record.partition, record.offset] = record.value or b""
        elif record.partition == 0 and found is None:
            try:
                seal = seals.decode(record.value or b"", run=run, version=version, prompts_per_step=prompts_per_step)
                found = (seal, record.offset)
            except RecordRefused as refused:
                passed.append(f"offset {record.offset}: {refused}")
    if found is None:
        why = f"no well-formed seal ({'; '.join(passed)})" if passed else "no seal"
        raise WeirError(f"{topic} has {why}: version {version} was not trained from it; give a --step that was")
    seal, offset = found
    return SealedBatch(version, seal, offset, [_body(topic, seal, slot, bodies) for slot in sorted(seal.slots)])


def _body(topic: str, seal: Seal, slot: int, bodies: Mapping[tuple[int, int], bytes]) -> bytes:
    entry = seal.slots[slot]
    value = bodies.get((entry.partition, entry.offset))
    where = f"{topic}[{entry.partition}] offset {entry.offset} ({key_of(seal.version, slot, entry)})"
    if value is None:
        raise WeirError(f"{where} is gone, though the seal names it: the broker lost it; replay from a dump made before (--from)")
    digest = hashlib.sha256(value).hexdigest()
    if digest != entry.sha256:
        raise WeirError(
            f"{where} is not the record that was sealed: its sha256 is {digest}, the seal says {entry.sha256}; "
            "it was damaged or replaced, so the step cannot be trained again from here; replay from a dump made before (--from)"
        )
    return value


def check_trained(steps: Iterable[int], recorded: Mapping[int, StepMetrics], key: str, value: object, where: str) -> None:
    """Every one of `steps` must have been recorded as trained. `key` and `value`: what a person asked for.

    Raises:
        ConfigError: names the first one that was not.
    """
    missing = next((step for step in steps if step not in recorded), None)
    if missing is not None:
        have = f"recorded are {min(recorded)} to {max(recorded)}" if recorded else "none is recorded"
        why = f"{where} have no record of step {missing}: {have}"
        raise ConfigError([Problem(key, value, why, "give steps that the run has trained")])


def config_note(batch: SealedBatch, config_digest: str, folder: Path) -> str | None:
    """A note for a person if the batch was sealed under another config than the present one, of digest `config_digest`."""
    then = batch.seal.config_digest
    if then == config_digest:
        return None
    kept = kept_config(folder, then)
    where = f"; {kept} is what it was then" if kept.is_file() else ""
    return f"note: step {batch.version} was sealed under the config of digest {then}, it is trained under {config_digest}{where}"


def key_of(version: int, slot: int, entry: SealedSlot) -> str:
    return f"v{version:08d}/s{slot:04d}/d{entry.draw}/a{entry.attempt}"


def last_step_metrics(records: Iterable[StoredRecord], run: str) -> dict[int, StepMetrics]:
    """The last record of each step of the run `run` (its uuid): a step has several if its data was lost and it was trained anew.

    Raises:
        WeirError: a record is no metrics record.
    """
    found: dict[int, StepMetrics] = {}
    for record in records:
        try:
            metrics = StepMetrics.from_bytes(record.value or b"")
        except RecordRefused as refused:
            raise WeirError(f"{record.where} is no metrics record: {refused}") from refused
        if metrics.uuid == run:
            found[metrics.step] = metrics
    return found
