"""Rank 0's loop: ask the dispatcher, command the ranks, do it, report.

    NextQuestion -> StartRefit   -> open, connect, send     -> WeightsSent, StepOutcome of the version before
                 -> TrainVersion -> train                   -> VersionTrained
                 -> FinishRun    -> last checkpoint, export -> RunFinished
                 -> EndRun

Rank 0 waits only inside `next`, which comes back within seconds, and for its checkpoints (`saves.py`), so every rank hears a
command at least every ten.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import assert_never

import torch

from broker_config.address import listen_address
from learner.checkpoint.catch_up import CatchUp
from learner.checkpoint.saves import Saves
from learner.checkpoint.saving import sweep
from learner.commands import DigestState, EndRank, ExportModel, GatherWeights, Idle, Train
from learner.grpo.batch import deal
from learner.grpo.group_metrics import group_metrics
from learner.link.client import DispatcherClient
from learner.link.messages import (
    EndRun,
    FinishRun,
    KeepWaiting,
    LearnerReady,
    RendezvousOpen,
    StartRefit,
    StepOutcome,
    TrainVersion,
    ValidationFigures,
    VersionTrained,
    WeightsSent,
)
from learner.metrics_log import MetricsLog
from learner.ranks import Ranks
from learner.worker import Worker
from schemas.config.config import Config
from schemas.errors import FileError, TransferError, WeirError
from schemas.failpoints import reach
from schemas.records.group import decode
from schemas.weights.transports.find import for_sender
from schemas.weights.transports.protocol import Sender

log = logging.getLogger(__name__)

WAITED_S = 0.02
"""Seconds. A batch that comes later than this after rank 0 is free counts as waited for; up to that it is the answer itself."""


@dataclass(slots=True)
class StepClock:
    """Where the time of the present step goes, in seconds."""

    started: float = field(default_factory=time.monotonic)
    waiting: float = 0.0
    refit: float = 0.0
    training: float = 0.0
    checkpointing: float = 0.0

    @contextmanager
    def saving(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.checkpointing += time.monotonic() - began

    def restart(self) -> dict[str, float]:
        """The finished step's times, by NeMo RL's names; the clock starts again."""
        now = time.monotonic()
        times = {
            "timing/train/total_step_time": now - self.started,
            "timing/train/exposed_generation": self.waiting,
            "timing/train/weight_sync": self.refit,
            "timing/train/policy_training": self.training,
            "timing/train/checkpointing": self.checkpointing,
        }
        self.started, self.waiting, self.refit, self.training, self.checkpointing = now, 0.0, 0.0, 0.0, 0.0
        return times


@dataclass(slots=True)
class UnreportedStep:
    """A trained version that is not reported yet: its weights' digest comes with the refit."""

    batch: TrainVersion
    metrics: dict[str, float]
    state_digest: str | None


class Loop:
    """Rank 0 of one learner, for one incarnation."""

    def __init__(self, config: Config, worker: Worker, ranks: Ranks, dispatcher: DispatcherClient, version: int) -> None:
        self.config = config
        self.worker = worker
        self.ranks = ranks
        self.dispatcher = dispatcher
        self.version = version
        self.saves = Saves(config, worker, ranks, dispatcher, version)
        self.clock = StepClock()
        self.metrics: MetricsLog
        self.unreported: UnreportedStep | None = None
        self.catch_up = CatchUp()
        self.weights_digest = ""
        self.interrupted: str | None = None

    def run(self) -> int:
        """Train until the run is over. Returns the exit code: 0 when all steps were trained.

        Raises:
            FileError: a checkpoint, the metrics or an export cannot be written; the end of the run was announced.
            WeirError: the dispatcher or another rank failed.
        """
        # Before the claim, which may take a while: Ctrl-C must end the run in order from the start.
        self._catch_signals()
        self.dispatcher.alive = self._alive
        self.dispatcher.await_claim()
        try:
            code = self._claimed()
        except FileError as failure:
            # Unlike a crash this would happen again: producers should end, not wait for a restarted learner.
            self._stop_run(failure)
            raise
        self.dispatcher.close()
        return code

    def _claimed(self) -> int:
        # Opened once the run is claimed: until then another learner may have written to it.
        self.metrics = MetricsLog(self.config.folder, self.config.logger, self.config.run_id)
        claim = self.dispatcher.claim
        if claim.lost_from is not None:
            self.metrics.cut(claim.lost_from)
        # Producers that are still there may hold these very weights; equal digests save them a transfer.
        self.weights_digest = self._weights_digest()
        self.dispatcher.report(LearnerReady(self.version, self.worker.weight_plan.digest, self.weights_digest))
        log.info("ready version=%d weights=%s", self.version, self.weights_digest)
        sweep(self.config.folder / "checkpoints", claim.incarnation)
        if self.version == 0:
            self._checkpoint()
            self.saves.finish()  # from here on there is always a whole one
        self.clock.restart()  # loading and claiming are no part of the first step
        code = self._serve()
        self.ranks.send(EndRank(code))
        self.metrics.close()
        return code

    def _stop_run(self, failure: FileError) -> None:
        """End the run with this cause. The broker may be gone too, if it shares the disk."""
        try:
            self.dispatcher.stop(str(failure), ordered=False)
        except WeirError as error:
            log.warning("the end of the run could not be announced: %s", error)

    def _serve(self) -> int:
        logged = ""
        while True:
            # The loop continues: the dispatcher answers `EndRun` once the end is written to the log.
            if self.interrupted is not None:
                self.dispatcher.stop(self.interrupted)
            with self.clock.saving():
                self.saves.turn()
            asked = time.monotonic()
            answer = self.dispatcher.next()
            for figures in answer.validations:
                self._log_validation(figures)
            match work := answer.work:
                case KeepWaiting(reason):
                    self.clock.waiting += time.monotonic() - asked
                    self.ranks.send(Idle())
                    if reason != logged:  # it comes again every few seconds
                        log.info("waiting for %s", reason)
                        logged = reason
                case StartRefit():
                    self._refit(work, asked)
                case TrainVersion():
                    self.clock.waiting += time.monotonic() - asked
                    self._train(work)
                case FinishRun():
                    self._finish()
                case EndRun(reason, finished, ordered):
                    log.log(logging.INFO if finished or ordered else logging.ERROR, "stop: %s", reason)
                    if ordered:
                        self.saves.finish()  # one that was begun; after a failure there may be no broker to ask
                    return 0 if finished else 1
                case _:
                    assert_never(work)

    # --- refit --------------------------------------------------------------------------------------------------------------

    def _refit(self, refit: StartRefit, asked: float) -> None:
        reach("learner.offer")
        senders = [self._sender() for _ in refit.worlds]
        try:
            # Listen, then offer, then wait: members connect as soon as they read the offer.
            opened = [sender.open(world) for sender, world in zip(senders, refit.worlds, strict=True)]
            self.dispatcher.report(RendezvousOpen(opened))
            connected, failed = _connect(senders)
            # The other ranks only now: they gather as soon as they hear it, and rank 0 can only once the members have come.
            self.ranks.send(GatherWeights())
            sent = self.worker.send(connected)
        finally:
            for sender in senders:
                sender.close()
        # `sent` counts the groups that were connected; the dispatcher knows all of them, by their place in the offer.
        positions = [index for index in range(len(senders)) if index not in failed]
        failed |= {positions[index]: str(error) for index, error in sent.failed.items()}
        self.weights_digest = sent.digest
        reach("learner.sent")
        self.dispatcher.report(WeightsSent(sent.digest, failed))
        self.clock.refit += time.monotonic() - asked
        log.info("refit round=%d version=%d groups=%d failed=%s", refit.number, refit.version, len(senders), failed or "none")
        if self.unreported is not None:
            self._report()

    def _sender(self) -> Sender:
        refit = self.config.refit
        timeout_s = refit.phase_timeout_s / 2  # a failed transfer is reported before the phase's deadline judges it
        transport = for_sender(refit.backend, gpu=torch.cuda.is_available())
        return transport.sender(refit.host or listen_address(self.config.kafka), timeout_s)

    # --- train --------------------------------------------------------------------------------------------------------------

    def _train(self, batch: TrainVersion) -> None:
        # First: it closes the step before this one, the clock included.
        self._report_pending()
        waited = self.clock.waiting > WAITED_S
        began = time.monotonic()
        groups = [decode(record) for record in batch.records]
        shares = deal(groups, batch.records, self.worker.policy.dp_size, self.worker.dp_of_rank)
        self.ranks.send(Train([[len(record) for record in share] for share in shares]))
        metrics = self.worker.train(self.ranks.send_records(shares))
        self.version = batch.version + 1
        # Versions that are caught up get no refit, which the digest would come with.
        if batch.catch_up:
            self.weights_digest = self._weights_digest()
        self.dispatcher.report(VersionTrained(batch.version, waited, self.weights_digest if batch.catch_up else None))
        # After `VersionTrained`: the dispatcher opens the round of the new weights while all ranks hash their state.
        state_digest = self._state_digest()
        again = batch.catch_up or batch.recorded_state is not None
        if again:
            self.catch_up.compare(batch.version, state_digest, batch.recorded_state)
        self.clock.training += time.monotonic() - began
        measured = {f"train/{name}": value for name, value in {**group_metrics(groups), **metrics}.items()}
        # A step that is trained again has its metrics already; those of catching up belong to the first new step.
        if not again:
            measured |= self.catch_up.take_metrics()
        self.unreported = UnreportedStep(batch, {**measured, **batch.counters}, state_digest)
        generated = sum(group.generated_tokens for group in groups)
        self.unreported.metrics["train/generated_tokens"] = float(generated)
        if batch.catch_up:
            self._report()

    def _report_pending(self) -> None:
        """Report a step whose new weights were not sent (a validation held the round back, or it was the last)."""
        if self.unreported is not None:
            self.weights_digest = self._weights_digest()
            self._report()

    def _report(self) -> None:
        """Report the step to the dispatcher and in the logs; begin a checkpoint if one is due."""
        assert self.unreported is not None
        done, self.unreported = self.unreported, None
        step = done.batch.version
        times = self.clock.restart()
        total = max(times["timing/train/total_step_time"], 1e-9)
        performance = {
            "performance/tokens_per_s": done.metrics["train/generated_tokens"] / total,
            "performance/learner_idle_share": times["timing/train/exposed_generation"] / total,
        }
        metrics = _finite({**done.metrics, **times, **performance})
        reach("learner.before_commit")
        # In this order, and each at most once: a learner that dies in between has logged nothing that the topic does not hold,
        # and one that resumes from a checkpoint finds every step before it in the topic.
        self.dispatcher.report(
            StepOutcome(step, done.batch.seal_offset, done.batch.offsets, done.state_digest, self.weights_digest, metrics)
        )
        self.metrics.step(step, metrics)
        reach("learner.after_commit")
        log.info(
            "step=%d reward=%.4f loss=%.5f age=%.2f tokens_per_s=%.0f waited_s=%.2f total_s=%.2f",
            step,
            metrics["train/reward"],
            metrics["train/loss"],
            metrics["train/avg_trajectory_age"],
            metrics["performance/tokens_per_s"],
            metrics["timing/train/exposed_generation"],
            total,
        )
        if (step + 1) % self.config.checkpointing.save_period == 0:
            self._checkpoint(done.state_digest)

    def _finish(self) -> None:
        self._report_pending()
        if self.saves.last != self.version:
            self._checkpoint()
        self.saves.finish()
        self.catch_up.take_metrics()  # logged here if no new step came after it
        if self.config.checkpointing.hf_export_at_end:
            self.ranks.send(ExportModel(self.version))
            log.info("exported %s", self.worker.export(self.version))
        self.dispatcher.finished()

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _weights_digest(self) -> str:
        self.ranks.send(GatherWeights())
        return self.worker.send(()).digest

    def _state_digest(self) -> str:
        self.ranks.send(DigestState())
        return self.worker.state_digest()

    def _checkpoint(self, state_digest: str | None = None) -> None:
        """Begin a checkpoint. `state_digest`: of the present state, if known."""
        with self.clock.saving():
            digest = state_digest or self._state_digest()
            self.saves.begin(self.version, state_digest=digest, weights_digest=self.weights_digest)

    def _log_validation(self, figures: ValidationFigures) -> None:
        self.metrics.validation(figures.version, figures.metrics)
        log.info("validation version=%d accuracy=%.4f", figures.version, figures.metrics["validation/accuracy"])

    def _alive(self) -> None:
        """Keep the other ranks alive while the dispatcher works on an answer that takes long."""
        self.ranks.send(Idle())

    def _catch_signals(self) -> None:
        # Only recorded: in the middle of a collective there is no way out that the other ranks would survive.
        def note(signum: int, _: FrameType | None) -> None:
            self.interrupted = f"interrupted by {signal.Signals(signum).name}"

        signal.signal(signal.SIGTERM, note)
        signal.signal(signal.SIGINT, note)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without what JSON cannot hold: a skipped step has no finite loss or gradient norm. They are counted instead."""
    kept = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return {**kept, "train/not_finite": float(len(metrics) - len(kept))}


def _connect(senders: Sequence[Sender]) -> tuple[list[Sender], dict[int, str]]:
    """Wait for the members of each group; a group whose members do not all come has failed."""
    connected: list[Sender] = []
    failed: dict[int, str] = {}
    for index, sender in enumerate(senders):
        try:
            sender.connect()
            connected.append(sender)
        except TransferError as error:
            failed[index] = str(error)
    return connected, failed
