"""Section `loss_fn`: the loss, chosen by `name`. Each form belongs to a file of the same name in `learner/grpo/losses/`.

Light on purpose: the config check imports this module, so it must never import torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from schemas.config.base import LATER, Section

DEFAULT = "clipped_pg"
CUSTOM = "module:function"
Positive = Annotated[float, Field(gt=0)]


class LossConfig(Section):
    """What every loss has: which mean is taken over the batch, the correction of off-policy tokens, the KL penalty.

    Names and meanings are NeMo RL's.
    """

    name: Annotated[str, LATER]
    """The loss."""
    reference_policy_kl_penalty: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence from the first checkpoint's policy. Above 0 a copy of those weights is kept."""
    reference_policy_kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that divergence."""
    kl_input_clamp_value: Positive | None = 20.0
    """Bound on the absolute log-ratio that the estimator gets; null: none."""
    kl_output_clamp_value: Positive | None = 10.0
    """Bound on the absolute estimate of a token; null: none."""
    use_on_policy_kl_approximation: bool = False
    """Weigh the estimate of each token by current over sampling probability."""
    token_level_loss: bool = True
    """Mean over all tokens of the batch; false: mean over trajectories of their token means."""
    use_importance_sampling_correction: bool = True
    """Weigh tokens by previous over sampling probability, since engine and learner never agree exactly and groups may be old."""
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = "tis"
    """tis: clamp that weight; icepop: drop tokens out of bounds; seq-mask-tis: drop trajectories whose mean is out of bounds."""
    truncated_importance_sampling_ratio: Positive = 2.0
    """Upper bound of the weight (for seq-mask-tis, of its geometric mean over a trajectory)."""
    truncated_importance_sampling_ratio_min: Annotated[float, Field(ge=0)] | None = None
    """Lower bound of the weight. icepop and seq-mask-tis need it; for tis null is 0."""
    sequence_level_importance_ratios: bool = False
    """One ratio for a whole trajectory (GSPO)."""
    force_on_policy_ratio: bool = False
    """Take the current policy as the previous one: the ratio is 1 and has a gradient. Needs one optimizer step per version."""

    @model_validator(mode="after")
    def _truncation(self) -> LossConfig:
        kind, low = self.truncated_importance_sampling_type, self.truncated_importance_sampling_ratio_min
        if kind is not None and not self.use_importance_sampling_correction:
            raise ValueError(
                f"truncated_importance_sampling_type {kind} truncates a weight that use_importance_sampling_correction switches "
                "off; set the type to null or switch the correction on"
            )
        if kind in ("icepop", "seq-mask-tis") and low is None:
            raise ValueError(f"{kind} needs truncated_importance_sampling_ratio_min (0.5 for icepop, 0.999 for seq-mask-tis)")
        if low is not None and low > self.truncated_importance_sampling_ratio:
            raise ValueError(
                f"truncated_importance_sampling_ratio_min {low} exceeds the ratio {self.truncated_importance_sampling_ratio}"
            )
        if self.sequence_level_importance_ratios and self.token_level_loss:
            raise ValueError("sequence_level_importance_ratios needs token_level_loss false")
        if self.sequence_level_importance_ratios and kind == "seq-mask-tis":
            raise ValueError("seq-mask-tis keeps token weights, sequence_level_importance_ratios has none; use tis or icepop")
        return self


class ClippedPgConfig(LossConfig):
    """The clipped policy gradient loss of PPO and GRPO, with the variants of NeMo RL's."""

    name: Annotated[Literal["clipped_pg"], LATER] = "clipped_pg"
    """The loss: `clipped_pg`, or your own function as `module:function`."""
    ratio_clip_min: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The probability ratio is clipped below at 1 minus this."""
    ratio_clip_max: Annotated[float, Field(ge=0)] = 0.2
    """The probability ratio is clipped above at 1 plus this."""
    ratio_clip_c: Annotated[float, Field(gt=1)] | None = None
    """Dual clip: bound on the ratio where the advantage is negative; null: none."""
    disable_ppo_ratio: bool = False
    """Plain REINFORCE: no ratio, no clipping."""

    @model_validator(mode="after")
    def _combinations(self) -> ClippedPgConfig:
        if self.disable_ppo_ratio:
            for name in ("force_on_policy_ratio", "sequence_level_importance_ratios", "ratio_clip_c"):
                if getattr(self, name):
                    raise ValueError(f"disable_ppo_ratio leaves no ratio for {name} to act on; drop one of the two")
        return self


class CustomLossConfig(LossConfig):
    """Your own loss function."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """`module:function`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments that are passed to the function by name."""


def _form(value: Any) -> Any:
    """The tag of the form that is meant."""
    name = value.get("name", DEFAULT) if isinstance(value, dict) else getattr(value, "name", DEFAULT)
    return CUSTOM if isinstance(name, str) and ":" in name else name


AnyLossConfig = Annotated[
    Annotated[ClippedPgConfig, Tag("clipped_pg")] | Annotated[CustomLossConfig, Tag(CUSTOM)],
    Discriminator(_form),
]
