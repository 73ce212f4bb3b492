"""The records of a dump, as a source of sealed batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker_config.clients.stored import StoredRecord
from learner.dump.index import Index
from learner.dump.records import read_records
from learner.replay.sources.sealed import SealedBatch, follow, last_step_metrics
from schemas.errors import WeirError
from schemas.records.metrics import StepMetrics


@dataclass(frozen=True, slots=True)
class DumpSource:
    """The records of a verified dump."""

    folder: Path
    index: Index
    where: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", str(self.folder))

    def step_metrics(self) -> dict[int, StepMetrics]:
        return last_step_metrics(self.records("metrics"), self.index.uuid)

    def batch(self, version: int) -> SealedBatch:
        kind, index = f"trajectories.v{version:08d}", self.index
        records, topic = self.records(kind), f"{index.run_id}.{kind}"
        return follow(records, topic, run=index.uuid, version=version, prompts_per_step=index.prompts_per_step)

    def records(self, kind: str) -> Iterator[StoredRecord]:
        """All records of a topic, by its name without the run's id."""
        topic = self.index.topics.get(kind)
        if topic is None:
            raise WeirError(f"{self.folder} holds versions {self.index.checkpoint} to {self.index.last}, no topic {kind}")
        return read_records(self.folder / topic.file)

    def close(self) -> None:
        """Nothing is open between calls."""
