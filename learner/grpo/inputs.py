"""What a loss is computed from.

Shapes: B trajectories, T tokens (padded). Position t of a `_BT` tensor belongs to token t given the tokens before it; position 0
holds nothing. Masks are float32, 1 where a token (a trajectory) counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
        """float32 [B, T]: tokens with loss."""
        return self.token_mask_BT * self.sample_mask_B[:, None]


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What a loss (a file in `losses/`) returns: the cost of each token, before correction, KL penalty and reduction.

    All float32 [B, T]; only `cost_BT` needs a gradient. The ratios are for the metrics.
    """

    cost_BT: Tensor
    ratio_BT: Tensor
    clipped_BT: Tensor


# Lost in a float32 count of 1 or more: it changes the empty mean alone.
EPSILON = 1e-8
"""Keeps the mean of an empty trajectory finite; NeMo RL's value."""


def sequence_mean(values_BT: Tensor, token_mask_BT: Tensor) -> Tensor:
    """float32 [B, 1]: mean over each trajectory's tokens; 0 where it has none."""
    return ((values_BT * token_mask_BT).sum(1) / (token_mask_BT.sum(1) + EPSILON))[:, None]
