"""What the dispatcher must know of the run's configuration, as numbers: seconds of the config are beats here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.config.dispatch import DispatchConfig, RefitConfig
from schemas.config.grpo import GenerationConfig, GrpoConfig
from schemas.records.requests import SamplingParameters


@dataclass(frozen=True, slots=True)
class Plan:
    """Facts that hold for the whole incarnation."""

    uuid: str
    incarnation: int
    config_digest: str
    seed: int
    grpo: GrpoConfig
    generation: GenerationConfig
    refit: RefitConfig
    dispatch: DispatchConfig
    producer_count: int
    request_partitions: int
    plan_digest: str
    agreed: Mapping[str, Any]
    digests: Mapping[str, str]

    def beats(self, seconds: float) -> int:
        """Beats that `seconds` are, at least one."""
        return max(1, math.ceil(seconds / self.dispatch.beat_s))

    def sampling(self) -> SamplingParameters:
        """Sampling of rollouts."""
        g = self.generation
        return SamplingParameters(
            n=self.grpo.num_generations_per_prompt,
            max_new_tokens=g.max_new_tokens,
            temperature=g.temperature,
            top_p=g.top_p,
            top_k=g.top_k,
            stop=g.stop,
            stop_token_ids=g.stop_token_ids,
        )

    def validation_sampling(self) -> SamplingParameters:
        """Sampling of validation: one completion a prompt, greedy unless `grpo.val_temperature` says otherwise."""
        g = self.generation
        return SamplingParameters(
            n=1,
            max_new_tokens=g.max_new_tokens,
            temperature=self.grpo.val_temperature,
            stop=g.stop,
            stop_token_ids=g.stop_token_ids,
        )

    def validates(self, version: int, last: int | None) -> bool:
        """Whether `version` is validated."""
        if version == 0:
            return self.grpo.val_at_start
        if version == last and self.grpo.val_at_end:
            return True
        return self.grpo.val_period > 0 and version % self.grpo.val_period == 0
