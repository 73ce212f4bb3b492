"""The GRPO loss as a pure function of log-probabilities.

Shapes: B trajectories, T tokens (padded). Position t of a `_BT` tensor belongs to token t given the tokens before it; position 0
holds nothing. Masks are float32, 1 where a token (a trajectory) counts.

The loss of a step is a mean over the *global* batch, so that micro batches and data-parallel ranks only ever add up. Megatron
divides the summed gradient by the global token count at the end of the step; what is returned here is therefore scaled such
that `sum over micro batches / global tokens` is the loss, also when the mean is taken over trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.config import LossFnConfig

EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Counts:
    """What the whole batch of an optimizer step holds, over all data-parallel ranks."""

    tokens: int
    """Tokens with loss in trajectories with loss."""
    sequences: int
    """Trajectories with loss."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro batch. All `_BT` tensors are float32 [B, T], `_B` tensors float32 [B]."""

    prev_BT: Tensor
    """Log-probabilities before the optimizer steps of this version."""
    gen_BT: Tensor
    """Log-probabilities that the engine sampled with."""
    ref_BT: Tensor | None
    """Log-probabilities of the reference policy; needed when its KL penalty is above 0."""
    advantages_B: Tensor
    token_mask_BT: Tensor
    sample_mask_B: Tensor

    @property
    def mask_BT(self) -> Tensor:
        return self.token_mask_BT * self.sample_mask_B[:, None]


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What the metrics are made of; all detached except `objective`."""

    objective: Tensor
    """Scalar with gradient; its sum over all micro batches and ranks, divided by `Counts.tokens`, is the loss."""
    ratio_BT: Tensor
    clipped_BT: Tensor
    kl_BT: Tensor
    """Estimated divergence from the reference policy, 0 without penalty."""
    weight_BT: Tensor
    """Importance weights before truncation."""
    oob_BT: Tensor
    """1 where the weight (of a trajectory: on each of its tokens) is out of bounds."""


def grpo_loss(curr_BT: Tensor, inputs: LossInputs, counts: Counts, cfg: LossFnConfig) -> LossTerms:
    """Loss of one micro batch, given the current policy's log-probabilities (with gradient)."""
    prev_BT = curr_BT.detach() if cfg.force_on_policy_ratio else inputs.prev_BT
    ratio_BT, clipped_BT = _ratios(curr_BT, prev_BT, inputs.token_mask_BT, cfg)
    advantages_B1 = inputs.advantages_B[:, None]
    cost_BT = torch.maximum(-advantages_B1 * ratio_BT, -advantages_B1 * clipped_BT)
    if cfg.ratio_clip_c is not None:
        bounded_BT = torch.minimum(cost_BT, -advantages_B1 * cfg.ratio_clip_c)
        cost_BT = torch.where(advantages_B1 < 0, bounded_BT, cost_BT)
    weight_BT, truncated_BT, oob_BT = _importance(prev_BT, inputs, cfg)
    loss_BT = truncated_BT * cost_BT
    kl_BT = torch.zeros_like(curr_BT)
    if cfg.reference_policy_kl_penalty > 0:
        if inputs.ref_BT is None:
            raise ValueError("a KL penalty needs the reference policy's log-probabilities")
        kl_BT = reference_kl(curr_BT, inputs.ref_BT, inputs.gen_BT, cfg)
        loss_BT = loss_BT + cfg.reference_policy_kl_penalty * kl_BT
    objective = reduce(loss_BT, inputs, counts, cfg)
    return LossTerms(objective, ratio_BT.detach(), clipped_BT.detach(), kl_BT.detach(), weight_BT, oob_BT)


def reduce(values_BT: Tensor, inputs: LossInputs, counts: Counts, cfg: LossFnConfig) -> Tensor:
    """Sum over the micro batch whose global sum, divided by the global token count, is the configured mean."""
    if cfg.token_level_loss:
        return (values_BT * inputs.mask_BT).sum()
    means_B = (values_BT * inputs.token_mask_BT).sum(1) / (inputs.token_mask_BT.sum(1) + EPSILON)
    return (means_B * inputs.sample_mask_B).sum() * (counts.tokens / max(counts.sequences, 1))


def _ratios(curr_BT: Tensor, prev_BT: Tensor, token_mask_BT: Tensor, cfg: LossFnConfig) -> tuple[Tensor, Tensor]:
    if cfg.disable_ppo_ratio:
        return curr_BT, curr_BT
    log_ratio_BT = (curr_BT - prev_BT) * token_mask_BT
    if cfg.sequence_level_importance_ratios:
        log_ratio_BT = _sequence_mean(log_ratio_BT, token_mask_BT).expand_as(curr_BT)
    ratio_BT = log_ratio_BT.exp()
    if cfg.force_on_policy_ratio:
        return ratio_BT, ratio_BT
    return ratio_BT, ratio_BT.clamp(1.0 - cfg.ratio_clip_min, 1.0 + cfg.ratio_clip_max)


def _sequence_mean(values_BT: Tensor, token_mask_BT: Tensor) -> Tensor:
    return ((values_BT * token_mask_BT).sum(1) / (token_mask_BT.sum(1) + EPSILON))[:, None]


def _importance(prev_BT: Tensor, inputs: LossInputs, cfg: LossFnConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Weights before and after truncation, and where they are out of bounds."""
    ones_BT = torch.ones_like(prev_BT)
    log_weight_BT = (prev_BT - inputs.gen_BT) * inputs.token_mask_BT
    if cfg.sequence_level_importance_ratios:
        exact_BT = log_weight_BT.sum(1, keepdim=True).expand_as(prev_BT).exp()
    else:
        exact_BT = log_weight_BT.exp()
    weight_BT = torch.nan_to_num(exact_BT, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = cfg.truncated_importance_sampling_ratio_min or 0.0, cfg.truncated_importance_sampling_ratio
    judged_BT = weight_BT
    if cfg.truncated_importance_sampling_type == "seq-mask-tis":
        judged_BT = _sequence_mean(log_weight_BT, inputs.token_mask_BT).expand_as(prev_BT).exp()
    inside_BT = ((judged_BT >= low) & (judged_BT <= high)).float()
    if not cfg.use_importance_sampling_correction:
        return weight_BT, ones_BT, torch.zeros_like(prev_BT)
    match cfg.truncated_importance_sampling_type:
        case None:
            return weight_BT, weight_BT, torch.zeros_like(prev_BT)
        case "tis":
            truncated_BT = weight_BT.clamp(low, high)
        case "icepop" | "seq-mask-tis":
            truncated_BT = weight_BT * inside_BT
    return weight_BT, truncated_BT, 1.0 - inside_BT


def reference_kl(curr_BT: Tensor, ref_BT: Tensor, gen_BT: Tensor, cfg: LossFnConfig) -> Tensor:
    """Estimated divergence from the reference policy, for each token, with gradient.

    The estimate is weighed by a factor of value 1 (or current over sampling probability) that carries the gradient of the
    sampling distribution; where the log-ratio was clamped the factor has no gradient.
    """
    raw_BT = ref_BT - curr_BT
    bound = cfg.kl_input_clamp_value
    log_ratio_BT = raw_BT if bound is None else raw_BT.clamp(-bound, bound)
    anchor_BT = gen_BT if cfg.use_on_policy_kl_approximation else curr_BT.detach()
    factor_BT = torch.nan_to_num((curr_BT - anchor_BT).exp(), nan=0.0, posinf=0.0, neginf=0.0)
    if bound is not None:
        factor_BT = torch.where(raw_BT.detach().abs() > bound, factor_BT.detach(), factor_BT)
    kl_BT = factor_BT * kl_estimate(log_ratio_BT, cfg.reference_policy_kl_type)
    limit = cfg.kl_output_clamp_value
    return kl_BT if limit is None else kl_BT.clamp(-limit, limit)


def kl_estimate(log_ratio: Tensor, kind: str) -> Tensor:
    """k1, k2 or k3 of log(other / sampled): estimates KL(sampled || other) from samples of the former."""
    match kind:
        case "k1":
            return -log_ratio
        case "k2":
            return 0.5 * log_ratio.square()
        case "k3":
            return log_ratio.exp() - log_ratio - 1.0
    raise ValueError(f"unknown KL estimator {kind!r}; known: k1, k2, k3")
