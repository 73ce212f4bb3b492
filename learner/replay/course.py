"""The course of a replay on rank 0: follow the seals, train, compare, tell. Neither torch nor a broker here.

Invariant: the exit code is 0 only if every step that was trained as it was, those on the way included, came out as recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from learner.checkpoint.determinism import same_layout
from learner.checkpoint.manifest import Determinism
from learner.replay import tokens
from learner.replay.compare import (
    OF_DTYPE,
    Comparison,
    Figures,
    Tolerance,
    changes,
    compare,
    reasons_for_tolerance,
)
from learner.replay.plan import Job
from learner.replay.report import DIFFERS, EQUAL, Report
from learner.replay.sources.sealed import SealedBatch, Source, config_note
from schemas.config.config import Config
from schemas.errors import WeirError
from schemas.records.group import decode
from schemas.records.metrics import StepMetrics


class Trainer(Protocol):
    """What trains: all ranks, as rank 0 sees them. `learner.replay.worker.ReplayWorker` is the real one."""

    config: Config

    def step(self, records: Sequence[bytes]) -> Figures: ...

    def present_digest(self) -> str: ...

    def score(self, record: bytes) -> list[list[float]]: ...

    def text(self, ids: Sequence[int]) -> str: ...

    def go_over(self) -> None: ...


class Course:
    """One replay. `here`: what the arithmetic depends on in this process.

    Raises:
        WeirError: (`run`) a batch cannot be had as it was sealed, or the checkpoint does not hold what its manifest says.
    """

    def __init__(
        self,
        job: Job,
        trainer: Trainer,
        source: Source,
        outcomes: Mapping[int, StepMetrics],
        report: Report,
        here: Determinism,
    ) -> None:
        self.job = job
        self.trainer = trainer
        self.source = source
        self.outcomes = outcomes
        self.report = report
        self.here = here
        self.tolerance: Tolerance | None = None
        self.noted: set[str] = set()

    def run(self) -> int:
        """Returns the exit code."""
        self._judge_facts()
        self._check_loaded()
        job = self.job
        good = True
        for version in range(job.manifest.version, job.first):
            good &= self._compared(version).verdict.good
        if job.group is not None:
            self._show_group(self._batch(job.first))
        elif job.changed is not None:
            if job.changed is not self.trainer.config:
                self.trainer.go_over()
            for version in range(job.first, job.last + 1):
                self._changed(version)
        else:
            for version in range(job.first, job.last + 1):
                good &= self._compared(version).verdict.good
        return EQUAL if good else DIFFERS

    def _judge_facts(self) -> None:
        if self.job.present is self.job.changed:
            return
        why = reasons_for_tolerance(self.job.facts, self.here)
        if why:
            self.tolerance = OF_DTYPE[self.trainer.config.model.dtype]
            self.report.line(f"compared within {self.tolerance.relative:g} (digests are not), because: " + "; ".join(why))

    def _check_loaded(self) -> None:
        """The state that was loaded is the one that was saved, wherever the layout allows to tell."""
        manifest, then, now = self.job.manifest, self.job.config.learner, self.job.present.learner
        sharded = (then.use_distributed_optimizer, now.use_distributed_optimizer)
        if sharded[0] != sharded[1] or not same_layout(manifest.determinism, self.here):
            return
        digest = self.trainer.present_digest()
        if digest != manifest.state_digest:
            raise WeirError(
                f"{self.job.checkpoint} does not hold what its manifest.json says: its state is {digest}, written was "
                f"{manifest.state_digest}; it is damaged: move it away, so that an earlier one is taken, or replay from a dump"
            )

    def _batch(self, version: int) -> SealedBatch:
        batch = self.source.batch(version)
        note = config_note(batch, self.job.config.digest, self.job.folder)
        if note is not None and batch.seal.config_digest not in self.noted:
            self.noted.add(batch.seal.config_digest)  # it holds for the steps after it too
            self.report.line(note)
        return batch

    def _train(self, version: int) -> tuple[Figures | None, Figures]:
        """(recorded, trained again)."""
        batch = self._batch(version)
        told = self.outcomes.get(version)
        recorded = None if told is None else Figures.of(told.metrics, told.state_digest, told.weights_digest)
        return recorded, self.trainer.step(batch.records)

    def _compared(self, version: int) -> Comparison:
        recorded, replayed = self._train(version)
        found = compare(version, recorded, replayed, self.tolerance)
        self.report.line(found.line)
        return found

    def _changed(self, version: int) -> None:
        for line in changes(version, *self._train(version)):
            self.report.line(line)

    def _show_group(self, batch: SealedBatch) -> None:
        assert self.job.group is not None
        record = tokens.record_of(batch, self.job.group)
        scores = self.trainer.score(record)
        self.report.line(f"learner: version {batch.version}, the state before the step; ratio: learner over engine")
        for line in tokens.lines(decode(record), scores, self.job.config.grpo, self.trainer.text):
            self.report.line(line)
