"""Metrics of a step, as sums that add up over micro batches and ranks and are divided once, at the end.

All sums are float64: with float32 the last digits would depend on how the batch was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from learner.grpo.inputs import Counts, LossInputs
from learner.grpo.kl import kl_estimate
from learner.grpo.objective import LossTerms, reduce
from schemas.config.loss import LossConfig

MAX_AGE = 16
"""Largest age that a run can be configured with; `grpo.max_trajectory_age_steps` has the same bound."""

TOKEN_MEANS = (
    "loss",
    "kl_penalty",
    "probs_ratio",
    "probs_ratio_clamped",
    "token_mult_prob_error",
    "gen_kl_error",
    "policy_kl_error",
    "js_divergence_error",
    "sampling_importance_ratio",
    "is_oob_ratio",
    "approx_entropy",
)
"""Metrics that are a sum divided by the global token count, in the order in which they are reduced."""


def token_sums(curr_BT: Tensor, inputs: LossInputs, terms: LossTerms, counts: Counts, cfg: LossConfig) -> Tensor:
    """float64 [len(TOKEN_MEANS)]: this micro batch's share of each mean, before the division."""
    # All of it detached: a metric must never hold a micro batch's graph.
    mask_BT = inputs.mask_BT.double()
    curr_BT, gen_BT = curr_BT.detach().double(), inputs.gen_BT.double()
    prev_BT = curr_BT if cfg.force_on_policy_ratio else inputs.prev_BT.double()
    # `where`, not a product: off the mask anything may stand, and 0 times infinity is no number.
    gap_BT = torch.where(mask_BT > 0, prev_BT - gen_BT, 0.0)
    # The mixture of both policies, for Jensen and Shannon's divergence.
    mix_BT = torch.logaddexp(prev_BT, gen_BT) - torch.log(torch.tensor(2.0, dtype=torch.float64))
    kind = cfg.reference_policy_kl_type
    by_sequence = cfg.sequence_level_importance_ratios
    values: dict[str, Tensor] = {
        "probs_ratio": terms.ratio_BT,
        "probs_ratio_clamped": terms.clipped_BT,
        "token_mult_prob_error": gap_BT.abs().exp(),
        "gen_kl_error": kl_estimate(gap_BT, kind),
        "policy_kl_error": kl_estimate(-gap_BT, kind),
        "js_divergence_error": 0.5 * (kl_estimate(prev_BT - mix_BT, "k3") + kl_estimate(gen_BT - mix_BT, "k3")),
        "sampling_importance_ratio": terms.weight_BT,
        "is_oob_ratio": terms.oob_BT,
        # -p log p needs the whole vocabulary; this weighs the sampled tokens by current over sampling probability instead.
        "approx_entropy": -(curr_BT - gen_BT).exp() * curr_BT,
    }
    sums = {name: torch.where(mask_BT > 0, value.double(), 0.0).sum() for name, value in values.items()}
    # What is one number for a trajectory is counted once for it; by tokens, long trajectories would count more.
    for name in ("sampling_importance_ratio", "is_oob_ratio"):
        if by_sequence or (name == "is_oob_ratio" and cfg.truncated_importance_sampling_type == "seq-mask-tis"):
            sums[name] = _sequence_share(values[name], inputs, counts)
    sums["loss"] = terms.objective.detach().double()
    sums["kl_penalty"] = reduce(terms.kl_BT.double(), inputs, counts, cfg).double()
    return torch.stack([sums[name] for name in TOKEN_MEANS])


def _sequence_share(values_BT: Tensor, inputs: LossInputs, counts: Counts) -> Tensor:
    """A value that is the same on all tokens of a trajectory: its mean over trajectories, scaled like the others."""
    each_B = torch.where(inputs.token_mask_BT > 0, values_BT.double(), -torch.inf).amax(1)
    kept_B = inputs.sample_mask_B * inputs.token_mask_BT.amax(1)
    return torch.where(kept_B > 0, each_B, 0.0).sum() * (counts.tokens / max(counts.sequences, 1))


def age_sums(prev_BT: Tensor, gen_BT: Tensor, mask_BT: Tensor, ages_BT: Tensor) -> tuple[Tensor, Tensor]:
    """By age in versions, 0..16: float64 [17, 2] of (sum of exp|gap|, tokens), and float64 [17] of the largest |gap|."""
    where = mask_BT > 0
    gaps = (prev_BT - gen_BT).abs().double()[where]
    # Records were checked when they came; without the clamp a negative age would be booked under the largest ones.
    ages = ages_BT[where].clamp(0, MAX_AGE)
    sums = torch.zeros(MAX_AGE + 1, 2, dtype=torch.float64, device=prev_BT.device)
    worst = torch.zeros(MAX_AGE + 1, dtype=torch.float64, device=prev_BT.device)
    for age in ages.unique().tolist():
        of_age = gaps[ages == age]
        sums[age, 0], sums[age, 1] = of_age.exp().sum(), of_age.numel()
        worst[age] = of_age.max()
    return sums, worst


def finish(sums: Tensor, by_age: Tensor, worst: Tensor, counts: Counts) -> dict[str, float]:
    """Globally reduced sums to metrics. `counts` are those of the step; ages without tokens have no entry."""
    metrics = {name: float(total) / max(counts.tokens, 1) for name, total in zip(TOKEN_MEANS, sums.tolist(), strict=True)}
    for age, (total, tokens) in enumerate(by_age.tolist()):
        if tokens:
            metrics[f"token_mult_prob_error_age_{age}"] = total / tokens
            metrics[f"gen_logprob_error_max_age_{age}"] = float(worst[age])
    return metrics


def merge(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a version from those of its optimizer steps: the largest of maxima, the mean of everything else."""
    # A dict, not a set: the order of metrics is that in which they first appear, in every process.
    names = {name: None for step in steps for name in step}
    merged = {}
    for name in names:
        values = [step[name] for step in steps if name in step]
        merged[name] = max(values) if "_max" in name else sum(values) / len(values)
    return merged
