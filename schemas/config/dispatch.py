"""Sections `dispatch` and `refit`: giving out slots, and giving producers new weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.config.base import LOCAL, RESUME, Section, Unit


class DispatchConfig(Section):
    """Giving out slots, and judging who is alive. Beats are the dispatcher's unit of time; they stop when it stops."""

    beat_s: Annotated[float, Field(gt=0)] = 1.0
    """Shortest time between two beats."""
    heartbeat_s: Annotated[float, Field(gt=0)] = 1.0
    """Time between a producer's heartbeats."""
    lease_beats: Annotated[int, Field(ge=2)] = 15
    """A producer is lost this many beats after its last record."""
    max_attempts: Annotated[int, Field(ge=1)] = 3
    """Attempts of a draw whose rollout fails, before its prompt is given up."""
    max_draws: Annotated[int, Field(ge=1)] = 8
    """Prompts of one slot that the filter of dynamic sampling may refuse; then the lowest of these draws is trained."""
    max_lost: Annotated[int, Field(ge=1)] = 4
    """How often a draw may be lost together with its producer, before its prompt is given up."""
    hedge_below: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Slots that the learner waits for are given to a second producer when the token rate of the first is below this share of the
    fleet's median; 0: never."""
    no_progress_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """The run ends when no group was accepted for this long."""
    no_producer_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """The run ends when there was no producer for this long."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """The first refit waits this long for `producer.count` producers, and then takes those that are there."""
    stall_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """A request without a new token for this long is issued again."""

    @model_validator(mode="after")
    def _lease(self) -> DispatchConfig:
        if self.lease_beats * self.beat_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"a lease of {self.lease_beats} beats of {self.beat_s} s is shorter than three heartbeats of {self.heartbeat_s} s"
            )
        return self


class RefitConfig(Section):
    """Giving the producers new weights."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Transport of the weights; auto: nccl where both sides have GPUs, else gloo."""
    mode: Literal["keep", "drain"] = "keep"
    """keep: running requests are frozen and continue with the new weights; drain: they end first, and no new ones start."""
    recompute_kv_cache_after_weight_updates: bool = True
    """Drop the caches of running requests at a refit, so that the new weights compute all of their context."""
    phase_timeout_s: Annotated[float, Field(gt=0), RESUME] = 60.0
    """Deadline of each phase of a round, counted in beats; the transport's own timeout is half of it."""
    max_tries: Annotated[int, Field(ge=1), RESUME] = 3
    """Failed rounds of a producer, in a row, until it is expelled."""
    host: Annotated[str | None, LOCAL, RESUME] = None
    """Address to which the learner's store binds and which producers can reach; null: the one on the route to the broker."""
    group_size: Annotated[Annotated[int, Field(ge=1)] | None, Unit("producers")] = None
    """Producers in one transfer group; null: all in one group."""
    bucket_mib: Annotated[int, Field(ge=1, le=4096)] = 64
    """Largest size of a bucket of weights (a single larger tensor gets a bucket to itself)."""
    probe_limit: Annotated[Annotated[float, Field(gt=0)] | None, Unit("nats")] = None
    """Largest |engine - learner| log-probability on the probe sequence; null: 1e-3 for float32, 0.5 for bfloat16."""
