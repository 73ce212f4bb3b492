"""One data-parallel rank's share of a version, as tensors.

A pure function of the groups and the config: the padded length too, so that a replay does the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from learner.grpo.advantages import group_advantages
from learner.grpo.group_metrics import group_metrics
from learner.grpo.split import split_by_tokens
from schemas.config.grpo import GrpoConfig
from schemas.records.group import Trajectory, TrajectoryGroup

__all__ = ["PAD_TO", "TrainBatch", "deal", "make_batch", "split_by_tokens", "group_metrics"]

PAD_TO = 8
"""Lengths are padded to a multiple of this: few distinct shapes, and divisible by the tensor-parallel size, which sequence
parallelism cuts them by."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """B trajectories of S tokens, prompt and response, padded on the right with token 0."""

    tokens: Tensor
    """int64 [B, S]"""
    token_mask: Tensor
    """float32 [B, S]: 1 on tokens that the engine generated"""
    sample_mask: Tensor
    """float32 [B]: 0 for trajectories without loss"""
    gen_logprobs: Tensor
    """float32 [B, S]: log-probability of each token under the distribution it was sampled from, 0 where the mask is 0"""
    advantages: Tensor
    """float32 [B]"""
    ages: Tensor
    """int64 [B, S]: target version minus generation version, 0 where the mask is 0"""
    lengths: Tensor
    """int64 [B]: tokens before the padding"""
    slots: Tensor
    """int64 [B]"""

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, index: Tensor, pad_to: int = PAD_TO) -> TrainBatch:
        """The rows `index` (int64), cut to the longest of them rounded up to `pad_to`. What is cut is padding."""
        width = min(round_up(int(self.lengths[index].max()), pad_to), self.tokens.shape[1])
        picked = {f.name: getattr(self, f.name)[index] for f in fields(self)}
        return TrainBatch(**{name: value[:, :width] if value.ndim == 2 else value for name, value in picked.items()})

    def to(self, device: torch.device) -> TrainBatch:
        return TrainBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def round_up(length: int, pad_to: int) -> int:
    return -(-length // pad_to) * pad_to


def deal(
    groups: Sequence[TrajectoryGroup], records: Sequence[bytes], dp_size: int, dp_of_rank: Sequence[int]
) -> list[list[bytes]]:
    """Each rank's records of a version, given all of them in slot order. Ranks of one data-parallel index get the same ones."""
    counts = [sum(len(group.prompt) + len(t.tokens) for t in group.trajectories) for group in groups]
    dealt = split_by_tokens(counts, dp_size)
    return [[records[slot] for slot in dealt[dp_rank]] for dp_rank in dp_of_rank]


def make_batch(groups: Sequence[TrajectoryGroup], grpo: GrpoConfig, pad_to: int = PAD_TO) -> TrainBatch:
    """Groups of one rank to its batch, in slot order, the trajectories of a group in theirs.

    Advantages are taken within each group over all of its trajectories; with `overlong_filtering` truncated ones then get no
    loss. The length S is the longest trajectory rounded up to a multiple of `pad_to`.

    Raises:
        ValueError: no groups.
    """
    if not groups:
        raise ValueError("a rank's batch needs at least one group")
    # Whoever brings the groups may have read them in any order; sums over rows must not depend on it.
    groups = sorted(groups, key=lambda group: group.request.slot)
    rows = [(group, t) for group in groups for t in group.trajectories]
    lengths = [len(group.prompt) + len(t.tokens) for group, t in rows]
    shape = (len(rows), round_up(max(lengths), pad_to))
    tokens = np.zeros(shape, dtype=np.int64)
    mask, logprobs = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    ages = np.zeros(shape, dtype=np.int64)
    for row, (group, t) in enumerate(rows):
        _fill(group, t, tokens[row], mask[row], logprobs[row], ages[row])
    advantages = [
        advantage
        for group in groups
        for advantage in group_advantages(
            [t.reward for t in group.trajectories],
            leave_one_out=grpo.use_leave_one_out_baseline,
            normalize=grpo.normalize_rewards,
        )
    ]
    # DAPO masks truncated trajectories (arXiv:2503.14476 sec. 3.4): they were cut, not wrong. Only the loss is taken from them;
    # their rewards stay in the baseline, or their siblings would look worse than they are.
    kept = [0.0 if grpo.overlong_filtering and t.truncated else 1.0 for _, t in rows]
    return TrainBatch(
        tokens=torch.from_numpy(tokens),
        token_mask=torch.from_numpy(mask),
        sample_mask=torch.tensor(kept, dtype=torch.float32),
        gen_logprobs=torch.from_numpy(logprobs),
        # Rounded once, here: everything before it was exact.
        advantages=torch.tensor(advantages, dtype=torch.float64).float(),
        ages=torch.from_numpy(ages),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        slots=torch.tensor([group.request.slot for group, _ in rows], dtype=torch.int64),
    )


def _fill(group: TrajectoryGroup, t: Trajectory, *rows: np.ndarray) -> None:
    tokens, mask, logprobs, ages = rows
    start = len(group.prompt)
    here = slice(start, start + len(t.tokens))
    tokens[:start], tokens[here] = group.prompt, t.tokens
    mask[here] = t.mask
    # What an environment wrote was sampled by nobody: whatever the record has there must not reach an exponential.
    generated = t.mask == 1
    logprobs[here] = np.where(generated, t.logprobs, 0.0)
    ages[here] = np.where(generated, group.request.version - t.token_versions(), 0)
