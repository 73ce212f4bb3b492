"""From log-probabilities to the scalar that the gradient is taken of: the chosen loss, its correction, the KL penalty, the mean.

The loss of a step is a mean over the *global* batch, so that micro batches and data-parallel ranks only ever add up. Megatron
divides the summed gradient by the global token count at the end of the step; what is returned here is therefore scaled such
that `sum over micro batches / global tokens` is the loss, also when the mean is taken over trajectories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learner.grpo.importance import importance
from learner.grpo.inputs import EPSILON, Counts, LossInputs, Surrogate
from learner.grpo.kl import reference_kl
from schemas.config.loss import LossConfig

Loss = Callable[[Tensor, LossInputs], Surrogate]
"""Current log-probabilities [B, T] (with gradient) and the inputs, to the cost of each token. `losses/` holds them."""


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


def objective(loss: Loss, curr_BT: Tensor, inputs: LossInputs, counts: Counts, cfg: LossConfig) -> LossTerms:
    """The objective of one micro batch, given the current policy's log-probabilities (with gradient).

    Raises:
        ValueError: a KL penalty, and no log-probabilities of the reference policy.
    """
    # The ratio is then 1 and has the policy gradient's gradient; the correction weighs against the current policy, too.
    if cfg.force_on_policy_ratio:
        inputs = replace(inputs, prev_BT=curr_BT.detach())
    surrogate = loss(curr_BT, inputs)
    weights = importance(inputs, cfg)
    # The weight stands outside of the clipping: it corrects who sampled, the clip bounds how far this version moves (the two
    # ratios of IcePop's objective, arXiv:2510.18855 sec. 2.3.2).
    loss_BT = weights.truncated_BT * surrogate.cost_BT
    kl_BT = torch.zeros_like(curr_BT)
    if cfg.reference_policy_kl_penalty > 0:
        if inputs.ref_BT is None:
            raise ValueError("a KL penalty needs the reference policy's log-probabilities")
        # In the loss, not in the reward, as in GRPO (arXiv:2402.03300 eq. 3); and unweighted, unlike the cost.
        kl_BT = reference_kl(curr_BT, inputs.ref_BT, inputs.gen_BT, cfg)
        loss_BT = loss_BT + cfg.reference_policy_kl_penalty * kl_BT
    return LossTerms(
        objective=reduce(loss_BT, inputs, counts, cfg),
        ratio_BT=surrogate.ratio_BT.detach(),
        clipped_BT=surrogate.clipped_BT.detach(),
        kl_BT=kl_BT.detach(),
        weight_BT=weights.weight_BT,
        oob_BT=weights.oob_BT,
    )


def reduce(values_BT: Tensor, inputs: LossInputs, counts: Counts, cfg: LossConfig) -> Tensor:
    """Sum over the micro batch whose global sum, divided by the global token count, is the configured mean.

    Over tokens, as DAPO (arXiv:2503.14476 eq. 12): long trajectories count by their length. Or over trajectories of the mean of
    each, as GRPO (arXiv:2402.03300 eq. 3): a token of a long one counts less.
    """
    if cfg.token_level_loss:
        return (values_BT * inputs.mask_BT).sum()
    means_B = (values_BT * inputs.token_mask_BT).sum(1) / (inputs.token_mask_BT.sum(1) + EPSILON)
    # Megatron will divide by tokens, and the mean wanted here is over trajectories: the factor takes that back. Counts are those
    # of the whole batch: a mean of means of micro batches would depend on how the batch was cut.
    return (means_B * inputs.sample_mask_B).sum() * (counts.tokens / max(counts.sequences, 1))
