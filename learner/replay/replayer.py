"""A replay on rank 0: read the sealed batches, train, compare, report. Neither torch nor a broker here.

Invariant: the exit code is 0 only if every step that was trained under the run's own config came out as recorded; the steps
between the checkpoint and the first requested one count too.
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
    StepFigures,
    Tolerance,
    changes,
    compare,
    reasons_for_tolerance,
)
from learner.replay.plan import ReplayPlan
from learner.replay.report import DIFFERS, EQUAL, ReplayReport
from learner.replay.sources.sealed import SealedBatch, Source, config_note
from schemas.config.config import Config
from schemas.errors import WeirError
from schemas.records.group import decode
from schemas.records.metrics import StepMetrics


class Trainer(Protocol):
    """All ranks, as rank 0 sees them. `learner.replay.worker.ReplayWorker` is the real one."""

    config: Config

    def step(self, records: Sequence[bytes]) -> StepFigures: ...

    def present_digest(self) -> str: ...

    def score(self, record: bytes) -> list[list[float]]: ...

    def text(self, ids: Sequence[int]) -> str: ...

    def change_config(self) -> None: ...


class Replayer:
    """Carries out one plan.

    Args:
        recorded: what the run recorded of its steps, by step.
        here: what the arithmetic depends on in this process.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        trainer: Trainer,
        source: Source,
        recorded: Mapping[int, StepMetrics],
        report: ReplayReport,
        here: Determinism,
    ) -> None:
        self.plan = plan
        self.trainer = trainer
        self.source = source
        self.recorded = recorded
        self.report = report
        self.here = here
        self.tolerance: Tolerance | None = None
        self.noted: set[str] = set()
        """Digests of the configs that a note was reported about."""

    def run(self) -> int:
        """Returns the exit code.

        Raises:
            WeirError: a batch is not available as it was sealed, or the checkpoint does not hold what its manifest says.
        """
        self._set_tolerance()
        self._check_loaded()
        plan = self.plan
        good = True
        for version in range(plan.manifest.version, plan.first):
            good &= self._compared(version).verdict.good
        if plan.group is not None:
            self._show_group(self._batch(plan.first))
        elif plan.changed is not None:
            if plan.changed is not self.trainer.config:
                self.trainer.change_config()
            for version in range(plan.first, plan.last + 1):
                self._changed(version)
        else:
            for version in range(plan.first, plan.last + 1):
                good &= self._compared(version).verdict.good
        return EQUAL if good else DIFFERS

    def _set_tolerance(self) -> None:
        if self.plan.start_config is self.plan.changed:
            return
        why = reasons_for_tolerance(self.plan.facts, self.here)
        if why:
            self.tolerance = OF_DTYPE[self.trainer.config.model.dtype]
            self.report.line(f"compared within {self.tolerance.relative:g} (digests are not), because: " + "; ".join(why))

    def _check_loaded(self) -> None:
        """The loaded state is the saved one, wherever the layout allows comparing them."""
        manifest, then, now = self.plan.manifest, self.plan.config.learner, self.plan.start_config.learner
        sharded = (then.use_distributed_optimizer, now.use_distributed_optimizer)
        if sharded[0] != sharded[1] or not same_layout(manifest.determinism, self.here):
            return
        digest = self.trainer.present_digest()
        if digest != manifest.state_digest:
            raise WeirError(
                f"{self.plan.checkpoint} does not hold what its manifest.json says: its state is {digest}, written was "
                f"{manifest.state_digest}; it is damaged: move it away, so that an earlier one is taken, or replay from a dump"
            )

    def _batch(self, version: int) -> SealedBatch:
        batch = self.source.batch(version)
        note = config_note(batch, self.plan.config.digest, self.plan.folder)
        if note is not None and batch.seal.config_digest not in self.noted:
            self.noted.add(batch.seal.config_digest)  # it holds for the steps after it too
            self.report.line(note)
        return batch

    def _train(self, version: int) -> tuple[StepFigures | None, StepFigures]:
        """(recorded, trained again)."""
        batch = self._batch(version)
        record = self.recorded.get(version)
        recorded = None if record is None else StepFigures.of(record.metrics, record.state_digest, record.weights_digest)
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
        assert self.plan.group is not None
        record = tokens.record_of(batch, self.plan.group)
        scores = self.trainer.score(record)
        self.report.line(f"learner: version {batch.version}, the state before the step; ratio: learner over engine")
        for line in tokens.lines(decode(record), scores, self.plan.config.grpo, self.trainer.text):
            self.report.line(line)
