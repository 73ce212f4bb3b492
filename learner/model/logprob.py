"""Log-probabilities of tokens from a model that is split over its vocabulary, computed only where they are wanted.

With a large vocabulary the logits dwarf everything else: a prompt's are never used, so they are never made. `RowSelector` lets
the output layer see only the wanted positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learner.model.megatron import mpu, vocab_parallel_cross_entropy


class RowSelector:
    """Cuts the output layer's input [s, b, h] to the wanted positions [n, 1, h], for the next forward pass only."""

    def __init__(self, output_layer: torch.nn.Module) -> None:
        self._rows: Tensor | None = None
        output_layer.register_forward_pre_hook(self._cut)

    def arm(self, rows: Tensor) -> None:
        """`rows`: int64 [n], positions in [s, b] order (t * b + trajectory)."""
        self._rows = rows

    def _cut(self, _: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # Disarmed at once: rows of one micro batch applied to another would be log-probabilities of other tokens.
        rows, self._rows = self._rows, None
        if rows is None:
            return args
        hidden = args[0]
        return (hidden.reshape(-1, hidden.shape[-1]).index_select(0, rows).unsqueeze(1), *args[1:])


class Wanted:
    """The predictions that a micro batch needs: token t of a trajectory is predicted at position t - 1."""

    def __init__(self, tokens_BT: Tensor, wanted_BT: Tensor) -> None:
        """`wanted_BT`: true (or non-zero) on tokens whose log-probability is wanted; position 0 has none."""
        mask = wanted_BT[:, 1:] > 0
        if not mask.any():
            mask = mask.clone()
            mask[0, 0] = True  # the passes of all ranks must stay alike, and an empty matrix product is not defined everywhere
        self.trajectory, self.position = mask.nonzero(as_tuple=True)
        self.targets = tokens_BT[self.trajectory, self.position + 1]
        self.shape = tuple(tokens_BT.shape)

    @property
    def rows(self) -> Tensor:
        """Flat positions in [s, b] order."""
        return self.position * self.shape[0] + self.trajectory

    def logprobs(self, logits: Tensor, *, cut: bool, temperature: float, vocab_size: int) -> Tensor:
        """float32 [B, T] with the log-probability of each wanted token, 0 elsewhere.

        `logits` of this rank's part of the vocabulary: [1, n, V / tp] when the output layer was `cut`, else [b, s, V / tp].
        They are overwritten.
        """
        at_NV = logits.reshape(-1, logits.shape[-1]) if cut else logits[self.trajectory, self.position]
        values = token_logprobs(at_NV, self.targets, temperature=temperature, vocab_size=vocab_size)
        blank = torch.zeros(self.shape, dtype=torch.float32, device=logits.device)
        # Not in place: the gradient goes through `values`.
        return blank.index_put((self.trajectory, self.position + 1), values)


def token_logprobs(logits_NV: Tensor, targets_N: Tensor, *, temperature: float, vocab_size: int) -> Tensor:
    """float32 [N]: log-softmax of logits / temperature at the targets. The logits may be overwritten.

    Columns past `vocab_size`, which only pad the vocabulary to a multiple of the tensor-parallel size, get no probability.
    """
    # In float32, whatever the model's dtype: a bfloat16 keeps too few digits of a log-softmax over a vocabulary. Logits that are
    # float32 already are not copied, and megatron's function turns its input into the softmax in place.
    scaled = logits_NV.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    width = scaled.shape[-1]
    # The padding rows are zero, so their logit is 0 and not minus infinity: a single one in the sum moves log-probabilities of a
    # small model by 6e-4.
    padding = min(max(width * (mpu.get_tensor_model_parallel_rank() + 1) - vocab_size, 0), width)
    if padding:
        blocked = torch.arange(width, device=scaled.device) >= width - padding
        scaled = scaled.masked_fill(blocked, float("-inf"))
    # A batch dimension of 1: the function is written for [s, b, V]. Its fused sibling rounds the gradient to bfloat16.
    return -vocab_parallel_cross_entropy(scaled.unsqueeze(0), targets_N.unsqueeze(0))[0]
