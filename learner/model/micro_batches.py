"""How a rank's share of a version is cut: into optimizer steps, and each of these into passes. Pure functions of the batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from learner.grpo.batch import TrainBatch


def optimizer_shares(rows: int, global_size: int | None, dp_size: int) -> list[Tensor]:
    """This rank's rows (int64) of each optimizer step, in slot order.

    Args:
        rows: trajectories of this rank. global_size: trajectories of a step over all ranks, None for all of them in one step.

    Raises:
        ValueError: the steps would not be of one size.
    """
    each = rows if global_size is None else global_size // dp_size
    if each < 1 or (global_size is not None and global_size % dp_size) or rows % each:
        raise ValueError(
            f"learner.train_global_batch_size {global_size} does not cut {rows * dp_size} trajectories evenly over "
            f"{dp_size} data-parallel ranks"
        )
    return list(torch.arange(rows).split(each))


def micro_batches(batch: TrainBatch, size: int) -> Iterator[tuple[Tensor, TrainBatch]]:
    """Rows of similar length together, the longest first; ties in slot order. Yields (rows of the batch, piece)."""
    # Similar lengths: least padding. The longest first: what does not fit into memory fails at once, not after minutes. A stable
    # sort: the order of ties decides which sums are made, and a replay must make the same ones.
    order = torch.argsort(batch.lengths, descending=True, stable=True)
    for index in order.split(size):
        yield index, batch.rows(index)
