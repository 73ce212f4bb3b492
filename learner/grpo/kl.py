"""Estimated divergence from the reference policy, from samples alone.

The estimators k1, k2 and k3 are J. Schulman's ("Approximating KL Divergence", 2020); k3 is also GRPO's (arXiv:2402.03300 eq. 4).
They estimate the value. The gradient of an estimate is no estimate of the gradient, since samples are drawn from the policy that
is differentiated ("On a few pitfalls in KL divergence gradient estimation for RL", arXiv:2506.09477); the factor in
`reference_kl` has the missing part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from schemas.config.loss import LossConfig


def reference_kl(curr_BT: Tensor, ref_BT: Tensor, gen_BT: Tensor, cfg: LossConfig) -> Tensor:
    """float32 [B, T], with gradient: KL(current || reference) estimated at each sampled token.

    The estimate is weighed by a factor of value 1 (or current over sampling probability) that carries the gradient of the
    sampling distribution; where the log-ratio was clamped the factor has no gradient.
    """
    raw_BT = ref_BT - curr_BT
    # k3 has an exponential in it: a token that the reference finds e^60 times likelier would be the whole penalty.
    bound = cfg.kl_input_clamp_value
    log_ratio_BT = raw_BT if bound is None else raw_BT.clamp(-bound, bound)
    anchor_BT = gen_BT if cfg.use_on_policy_kl_approximation else curr_BT.detach()
    # Its value is 1 with the second anchor. It is there for its gradient: the expectation is over samples of the policy itself.
    # Not finite where an engine's log-probability is not: such a token has no penalty.
    factor_BT = torch.nan_to_num((curr_BT - anchor_BT).exp(), nan=0.0, posinf=0.0, neginf=0.0)
    # A clamped estimate is a constant. With the factor's gradient the token would still be pulled, by a number without a meaning.
    if bound is not None:
        factor_BT = torch.where(raw_BT.detach().abs() > bound, factor_BT.detach(), factor_BT)
    kl_BT = factor_BT * kl_estimate(log_ratio_BT, cfg.reference_policy_kl_type)
    limit = cfg.kl_output_clamp_value
    return kl_BT if limit is None else kl_BT.clamp(-limit, limit)


def kl_estimate(log_ratio: Tensor, kind: str) -> Tensor:
    """k1, k2 or k3 of log(other / sampled), any shape and dtype: estimates KL(sampled || other) from samples of the former.

    Raises:
        ValueError: another kind.
    """
    match kind:
        case "k1":
            return -log_ratio  # unbiased, of high variance, and negative for half of the samples
        case "k2":
            return 0.5 * log_ratio.square()  # biased, of low variance
        case "k3":
            return log_ratio.exp() - log_ratio - 1.0  # unbiased and never negative
    raise ValueError(f"unknown KL estimator {kind!r}; known: k1, k2, k3")
