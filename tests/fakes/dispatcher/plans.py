"""Plans of a dispatcher: small numbers, one beat a second."""

from __future__ import annotations

from typing import Any

from learner.dispatcher.state.plan import Plan
from schemas.config.dispatch import DispatchConfig, RefitConfig
from schemas.config.grpo import GenerationConfig, GrpoConfig
from tests.fakes.records.make import DIGESTS, PLAN_DIGEST, UUID


def make_plan(
    *,
    grpo: dict[str, Any] | None = None,
    dispatch: dict[str, Any] | None = None,
    refit: dict[str, Any] | None = None,
    **changes: Any,
) -> Plan:
    """N = 2, A = 1, 8 steps, one producer; sections are changed by key."""
    values: dict[str, Any] = {
        "uuid": UUID,
        "incarnation": 0,
        "config_digest": "config",
        "seed": 3,
        "grpo": GrpoConfig(
            **{
                "num_prompts_per_step": 2,
                "num_generations_per_prompt": 2,
                "max_num_steps": 8,
                "max_trajectory_age_steps": 1,
                **(grpo or {}),
            }
        ),
        "generation": GenerationConfig(max_new_tokens=5),
        "refit": RefitConfig(**{"phase_timeout_s": 6.0, **(refit or {})}),
        "dispatch": DispatchConfig(**{"lease_beats": 4, **(dispatch or {})}),
        "producer_count": 1,
        "request_partitions": 4,
        "plan_digest": PLAN_DIGEST,
        "agreed": {"grpo.num_prompts_per_step": 2},
        "digests": DIGESTS,
    }
    return Plan(**{**values, **changes})
