"""Section `producer`: the vLLM side."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.config.base import Section, Unit


class ProducerConfig(Section):
    """How many producers run on this machine, and how each does its work."""

    count: Annotated[int, Field(ge=1)] = 1
    """Producers that `launch/run_cluster.sh` starts; the first refit waits for this many."""
    engine: Literal["vllm", "scripted"] = "vllm"
    """vllm: a model; scripted: deterministic tokens without a model, for tests of scheduling and faults."""
    max_groups_in_flight: Annotated[int, Field(ge=1), Unit("groups")] = 8
    """Groups that one producer works on at once: its capacity."""
    max_trajectory_retries: Annotated[int, Field(ge=0)] = 2
    """Retries of a failed trajectory before its whole group counts as failed."""
    rollout_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """A trajectory has failed after this long without a new token and without an answer of its environment."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads of the engine (OMP); null: vLLM's own choice, 1 on machines of up to 4 cores."""
    vllm: dict[str, Any] = Field(default_factory=dict)
    """Engine arguments that are passed to vLLM as they are."""
    scripted: dict[str, Any] = Field(default_factory=dict)
    """Delays and faults of the scripted engine."""
