"""The clipped policy gradient of PPO (arXiv:1707.06347 eq. 7), as GRPO uses it (arXiv:2402.03300 eq. 3).

Separate bounds above and below are DAPO's (arXiv:2503.14476 eq. 8 and sec. 3.1); one ratio for a trajectory is GSPO's
(arXiv:2507.18071 eq. 5 and 7).
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.grpo.inputs import LossInputs, Surrogate, sequence_mean
from schemas.config.loss import ClippedPgConfig


def surrogate(curr_BT: Tensor, inputs: LossInputs, cfg: ClippedPgConfig) -> Surrogate:
    """Cost: -min(ratio * A, clip(ratio) * A), and with `ratio_clip_c` the dual clip (arXiv:1912.09729 eq. 5)."""
    ratio_BT, clipped_BT = _ratios(curr_BT, inputs.prev_BT, inputs.token_mask_BT, cfg)
    advantages_B1 = inputs.advantages_B[:, None]
    # The worse of the two: clipping may only take gain away, so a ratio that went the wrong way is always pulled back.
    cost_BT = torch.maximum(-advantages_B1 * ratio_BT, -advantages_B1 * clipped_BT)
    if cfg.ratio_clip_c is not None:
        # With a negative advantage the minimum has no bound: a token whose ratio exploded would rule the whole step.
        bounded_BT = torch.minimum(cost_BT, -advantages_B1 * cfg.ratio_clip_c)
        cost_BT = torch.where(advantages_B1 < 0, bounded_BT, cost_BT)
    return Surrogate(cost_BT, ratio_BT, clipped_BT)


def _ratios(curr_BT: Tensor, prev_BT: Tensor, token_mask_BT: Tensor, cfg: ClippedPgConfig) -> tuple[Tensor, Tensor]:
    """The probability ratio and its clipped form."""
    if cfg.disable_ppo_ratio:
        return curr_BT, curr_BT  # REINFORCE: the gradient of log p itself
    # A difference of logarithms: in float32 the probability of a rare token is 0, and a quotient of two such is no number.
    log_ratio_BT = (curr_BT - prev_BT) * token_mask_BT
    if cfg.sequence_level_importance_ratios:
        # The geometric mean of the tokens' ratios. Expanded again, so that the same reduction serves both.
        log_ratio_BT = sequence_mean(log_ratio_BT, token_mask_BT).expand_as(curr_BT)
    ratio_BT = log_ratio_BT.exp()
    if cfg.force_on_policy_ratio:
        return ratio_BT, ratio_BT  # its value is 1 everywhere, so nothing is clipped
    return ratio_BT, ratio_BT.clamp(1.0 - cfg.ratio_clip_min, 1.0 + cfg.ratio_clip_max)
