"""Importance weights: previous policy over the one that sampled, for each token.

Engine and learner never agree exactly, and a group may be several versions old, so tokens are weighed by how likely the policy
before this version's steps would have sampled them. Weights are truncated, since a few large ones would rule the step:

    tis            clamps them, as V-trace does (arXiv:1802.01561 sec. 4.1); for engines that differ from their trainer: Yao et
                   al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025
    icepop         drops tokens out of bounds and keeps the weight of the others (arXiv:2510.18855 sec. 2.3.2)
    seq-mask-tis   drops trajectories whose geometric mean is out of bounds, and keeps token weights (NeMo RL's guide to ProRLv2,
                   "Truncated Importance Sampling")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from learner.grpo.inputs import LossInputs, sequence_mean
from schemas.config.loss import LossConfig


@dataclass(frozen=True, slots=True)
class Importance:
    """float32 [B, T] each, without gradient."""

    weight_BT: Tensor
    """Before truncation: what the metrics show, so that a drifting engine is seen."""
    truncated_BT: Tensor
    """What the cost of each token is multiplied by."""
    oob_BT: Tensor
    """1 where the weight (of a trajectory: on each of its tokens) is out of bounds."""


def importance(inputs: LossInputs, cfg: LossConfig) -> Importance:
    """The weights of one micro batch; 1 on every token without `use_importance_sampling_correction`."""
    prev_BT = inputs.prev_BT
    # What stands off the mask is of no sampled token, and the sum over a trajectory must not have it in it.
    log_weight_BT = (prev_BT - inputs.gen_BT) * inputs.token_mask_BT
    if cfg.sequence_level_importance_ratios:
        # The exact ratio of a whole trajectory: a sum, where GSPO's clipped ratio is a mean (arXiv:2507.18071 eq. 7).
        exact_BT = log_weight_BT.sum(1, keepdim=True).expand_as(prev_BT).exp()
    else:
        exact_BT = log_weight_BT.exp()
    # A product of many ratios overflows, and an engine may report minus infinity. Such a token says nothing, so it weighs
    # nothing; clamped to the upper bound, as infinity would be, it would weigh most.
    weight_BT = torch.nan_to_num(exact_BT, nan=0.0, posinf=0.0, neginf=0.0)
    nothing_BT = torch.zeros_like(prev_BT)
    if not cfg.use_importance_sampling_correction:
        return Importance(weight_BT, torch.ones_like(prev_BT), nothing_BT)
    low, high = cfg.truncated_importance_sampling_ratio_min or 0.0, cfg.truncated_importance_sampling_ratio
    # A mean of logarithms does not grow with length, so one pair of bounds near 1 judges short and long trajectories alike.
    judged_BT = weight_BT
    if cfg.truncated_importance_sampling_type == "seq-mask-tis":
        judged_BT = sequence_mean(log_weight_BT, inputs.token_mask_BT).expand_as(prev_BT).exp()
    inside_BT = ((judged_BT >= low) & (judged_BT <= high)).float()
    match cfg.truncated_importance_sampling_type:
        case None:
            return Importance(weight_BT, weight_BT, nothing_BT)
        case "tis":
            truncated_BT = weight_BT.clamp(low, high)
        case "icepop" | "seq-mask-tis":
            # The mean is still taken over all tokens: dropping some makes the step smaller, not the others larger.
            truncated_BT = weight_BT * inside_BT
        case other:
            assert_never(other)
    return Importance(weight_BT, truncated_BT, 1.0 - inside_BT)
