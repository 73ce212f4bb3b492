"""Sections `grpo` and `generation`: the algorithm's sizes, and sampling."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from schemas.config.base import LOCAL, RESUME, Section, Unit


class GrpoConfig(Section):
    """The algorithm's sizes. N = num_prompts_per_step, G = num_generations_per_prompt, A = max_trajectory_age_steps."""

    num_prompts_per_step: Annotated[int, Field(ge=1, le=1_000_000), Unit("groups")] = 16
    """Groups that a step consumes, exactly this many (N)."""
    num_generations_per_prompt: Annotated[int, Field(ge=1, le=4096), Unit("trajectories")] = 16
    """Trajectories of a group (G)."""
    max_num_steps: Annotated[int, Field(ge=1, lt=10**8), LOCAL, RESUME, Unit("versions")] = 100
    """Last step of the run, at most."""
    max_num_epochs: Annotated[Annotated[int, Field(ge=1)] | None, LOCAL, RESUME, Unit("epochs")] = None
    """Passes over the training rows, at most; null: no bound. A remainder of fewer than N rows is dropped and counted."""
    max_trajectory_age_steps: Annotated[int, Field(ge=0, le=16), Unit("versions")] = 1
    """Bound on target version minus the version that sampled a token (A), for every token. 0 is synchronous training."""
    normalize_rewards: bool = True
    """Divide advantages by the group's standard deviation."""
    use_leave_one_out_baseline: bool = False
    """Baseline of a trajectory: the mean of the others instead of the mean of all."""
    use_dynamic_sampling: bool = False
    """Leave out groups whose rewards are all equal: the slot gets another prompt, up to `dispatch.max_draws` in all."""
    overlong_filtering: bool = False
    """Exclude truncated trajectories from the loss (they still count in the baseline)."""
    val_period: Annotated[int, Field(ge=0), LOCAL, Unit("versions")] = 0
    """Versions from one validation to the next; 0: none."""
    val_at_start: Annotated[bool, LOCAL] = False
    """Validate version 0 too."""
    val_at_end: Annotated[bool, LOCAL] = False
    """Validate the last version too."""
    max_val_samples: Annotated[Annotated[int, Field(ge=1)] | None, LOCAL, Unit("prompts")] = None
    """Prompts of one validation, at most; null: all rows."""
    val_temperature: Annotated[float, Field(ge=0), LOCAL] = 0.0
    """Sampling temperature of validation; 0 is greedy."""
    val_timeout_s: Annotated[float, Field(gt=0), LOCAL, RESUME] = 600.0
    """A validation that takes longer is ended and reported as incomplete."""

    @model_validator(mode="after")
    def _comparable(self) -> GrpoConfig:
        if self.use_dynamic_sampling and self.num_generations_per_prompt < 2:
            raise ValueError(
                "use_dynamic_sampling needs num_generations_per_prompt of 2 or more: one reward is always equal to itself"
            )
        return self


class GenerationConfig(Section):
    """Sampling, as vLLM names it. Requests carry all of it."""

    max_new_tokens: Annotated[int, Field(ge=1), Unit("tokens")] = 512
    """Generated tokens of a trajectory over all of its turns, at most."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature of rollouts."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: the smallest set of tokens whose probabilities sum to this."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Sample only from this many most likely tokens; null: from all."""
    stop: list[str] | None = None
    """Strings that end a completion."""
    stop_token_ids: list[int] | None = None
    """Token ids that end a completion, besides the model's own end tokens."""
