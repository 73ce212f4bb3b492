"""What a replay starts from: a run's folder with checkpoints, sealed batches, records of its steps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from learner.checkpoint.manifest import Manifest, Offsets
from learner.replay.sources.sealed import SealedBatch
from schemas.config.file import build
from schemas.records import group as groups
from schemas.records.metrics import StepMetrics
from schemas.records.seal import Seal, SealedSlot
from tests.fakes.learner import saved
from tests.fakes.learner.facts import FACTS
from tests.fakes.records.groups import make_group
from tests.fakes.records.make import UUID
from tests.fakes.records.runs import raw_config


def run_folder(runs: Path, threads: Mapping[int, int]) -> Path:
    """A run with checkpoints of these versions, each written with so many threads."""
    home = runs / "r"
    (home / "checkpoints").mkdir(parents=True)
    (home / "config.yaml").write_text(build(raw_config(run={"name": "tiny", "id": "r"})).to_yaml())
    for version, count in threads.items():
        save_checkpoint(home, version, count)
    return home


def save_checkpoint(home: Path, version: int, threads: int = 1) -> Path:
    manifest = Manifest(
        run=UUID,
        version=version,
        incarnation=0,
        topic_ids={f"r.trajectories.v{version:08d}": f"id-{version}"},
        next_offsets=Offsets(control=0, status=0),
        state_digest="s",
        weights_digest="w",
        config_digest="c",
        determinism=FACTS.model_copy(update={"threads": threads}),
    )

    def write(folder: Path) -> None:
        (folder / "data").write_bytes(b"weights")

    return saved.save(home / "checkpoints", manifest, write)


class Sealed:
    """A source of sealed batches, each of one group; `configs`: the digest that the seal of each version carries."""

    where = "the topics"

    def __init__(self, configs: Mapping[int, str]) -> None:
        self._configs = configs

    def step_metrics(self) -> Mapping[int, StepMetrics]:
        return {}

    def batch(self, version: int) -> SealedBatch:
        value = groups.encode(make_group(version, 0))
        digest = hashlib.sha256(value).hexdigest()
        seal = Seal(UUID, 0, self._configs[version], version, {0: SealedSlot(0, 0, 0, 0, digest, digest)})
        return SealedBatch(version, seal, 1, [value])

    def close(self) -> None:
        """Nothing is open."""
