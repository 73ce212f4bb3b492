"""Rank 0 of a replay: load the checkpoint, follow the seals, compare, tell. The other ranks obey."""

from __future__ import annotations

from collections.abc import Mapping

from learner.checkpoint import determinism
from learner.ranks import Ranks
from learner.replay import tokens
from learner.replay.compare import (
    OF_DTYPE,
    Comparison,
    Figures,
    Tolerance,
    Verdict,
    changes,
    compare,
    different_facts,
    reasons_for_tolerance,
)
from learner.replay.plan import Job
from learner.replay.report import DIFFERS, EQUAL, Report
from learner.replay.sealed import SealedBatch, Source
from learner.replay.worker import ReplayWorker
from learner.session import FIRST_COLLECTIVE_S, join_ranks
from schemas.errors import WeirError
from schemas.group import decode
from schemas.metrics import StepMetrics


def serve(job: Job, source: Source | None, outcomes: Mapping[int, StepMetrics], report: Report) -> int:
    """`source`: None on all ranks but 0. Returns the exit code.

    Raises:
        WeirError: a batch cannot be had as it was sealed, or the checkpoint does not hold what its manifest says.
    """
    run = job.present
    join_ranks(run)
    ranks = Ranks(max(FIRST_COLLECTIVE_S, run.learner.rank_timeout_s))
    worker = ReplayWorker(run, job.changed, ranks, job.checkpoint)
    ranks.barrier()
    if source is None:
        return worker.obey()
    code = _Replay(job, worker, source, outcomes, report).run()
    ranks.rank0_tell("stop", code=code)
    return code


class _Replay:
    def __init__(
        self, job: Job, worker: ReplayWorker, source: Source, outcomes: Mapping[int, StepMetrics], report: Report
    ) -> None:
        self.job = job
        self.worker = worker
        self.source = source
        self.outcomes = outcomes
        self.report = report
        self.tolerance: Tolerance | None = None

    def run(self) -> int:
        self._judge_facts()
        self._check_loaded()
        job = self.job
        differs = False
        for version in range(job.manifest.version, job.first):
            differs |= self._compared(version).verdict is Verdict.DIFFERS
        if job.group is not None:
            self._show_group(self.source.batch(job.first))
            return EQUAL
        if job.changed is not None:
            if job.changed is not self.worker.run:
                self.worker.go_over()
            for version in range(job.first, job.last + 1):
                self._changed(version)
            return DIFFERS if differs else EQUAL
        for version in range(job.first, job.last + 1):
            differs |= self._compared(version).verdict is Verdict.DIFFERS
        return DIFFERS if differs else EQUAL

    def _judge_facts(self) -> None:
        if self.job.present is self.job.changed:
            return
        why = reasons_for_tolerance(self.job.facts, determinism(self.worker.run.learner))
        if why:
            self.tolerance = OF_DTYPE[self.worker.run.model.dtype]
            self.report.line(f"compared within {self.tolerance.relative:g} (digests are not), because: " + "; ".join(why))

    def _check_loaded(self) -> None:
        """The state that was loaded is the one that was saved, wherever the layout allows to tell."""
        manifest = self.job.manifest
        here = determinism(self.worker.run.learner)
        layout = [fact for fact in different_facts([manifest.determinism], here) if "parallel_size" in fact]
        if layout:
            return
        digest = self.worker.present_digest()
        if digest != manifest.state_digest:
            raise WeirError(
                f"{self.job.checkpoint} does not hold what its manifest.json says: its state is {digest}, written was "
                f"{manifest.state_digest}; it is damaged: move it away, so that an earlier one is taken, or replay from a dump"
            )

    def _train(self, version: int) -> tuple[Figures | None, Figures]:
        """(recorded, trained again)."""
        batch = self.source.batch(version)
        told = self.outcomes.get(version)
        recorded = None if told is None else Figures.of(told.metrics, told.state_digest, told.weights_digest)
        return recorded, self.worker.step(batch.records)

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
        scores = self.worker.score(record)
        from transformers import AutoTokenizer  # only here: a second to import

        model = self.job.run.model
        tokenizer = AutoTokenizer.from_pretrained(model.tokenizer or self.worker.policy.folder)
        self.report.line(f"learner: version {batch.version}, the state before the step; ratio: learner over engine")
        for line in tokens.lines(
            decode(record), scores, self.job.run.grpo, lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
        ):
            self.report.line(line)
