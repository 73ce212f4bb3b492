"""Forms: how the checkpoint's tensors make up one Megatron parameter on one rank, and how they come back out of it.

megatron fuses q, k and v into one matrix, gate and up into another, and splits matrices over tensor-parallel ranks by rows or by
columns. A form is both directions of one such rule. Invariant: `whole` of all ranks' `share` is the input, bit for bit; nothing
is ever computed, only moved.

Families name forms in their tables, and the config check reads families, so torch is not imported when this module is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a form needs to know of the model and of this rank."""

    queries: int
    """Query heads of the whole model."""
    groups: int
    """Query groups: its key heads, and its value heads."""
    width: int
    """Of a head."""
    vocab: int
    """Rows of the checkpoint's embedding."""
    rank: int
    """Of this process among the tensor-parallel ones."""
    ranks: int
    """Tensor-parallel processes."""


class Form(Protocol):
    """One rule, both ways. `split`: whether each rank holds its own part; if not, every rank holds the same whole."""

    @property
    def split(self) -> bool: ...

    def share(self, full: Sequence[Tensor], sizes: Sizes) -> Tensor:
        """The parameter of rank `sizes.rank`, from the checkpoint's full tensors in the order of the family's table."""
        ...

    def whole(self, shards: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, ...]:
        """The checkpoint's tensors, from the parameter of every rank in rank order; one shard if the form does not split."""
        ...


class Same:
    """One tensor, the same on all ranks."""

    split = False

    def share(self, full: Sequence[Tensor], sizes: Sizes) -> Tensor:
        return full[0]

    def whole(self, shards: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, ...]:
        return (shards[0],)


@dataclass(frozen=True, slots=True)
class Cut:
    """One tensor, cut evenly along a dimension: 0 for a matrix whose outputs are spread over ranks, 1 for its inputs."""

    dim: int
    split = True

    def share(self, full: Sequence[Tensor], sizes: Sizes) -> Tensor:
        return full[0].chunk(sizes.ranks, self.dim)[sizes.rank]

    def whole(self, shards: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, ...]:
        return (joined(shards, self.dim),)


class Vocabulary:
    """An embedding or an output matrix, cut by rows. megatron wants as many on each rank, so rows of zeros fill the last one up.

    Their logits are 0, not minus infinity: whoever takes a softmax must mask them (`logprob.py`).
    """

    split = True

    def share(self, full: Sequence[Tensor], sizes: Sizes) -> Tensor:
        (rows,) = full
        missing = padded_vocab(sizes.vocab, sizes.ranks) - rows.shape[0]
        if missing:
            rows = joined([rows, rows.new_zeros(missing, rows.shape[1])], 0)
        return rows.chunk(sizes.ranks)[sizes.rank]

    def whole(self, shards: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, ...]:
        # The rows that filled it up are still zero: masked and never looked up, they get no gradient.
        return (joined(shards, 0)[: sizes.vocab],)


class QueryKeyValue:
    """Weights or biases of q, k and v in one: for each query group its q heads, then its k head, then its v head.

    In this order an even cut by rows gives each rank whole groups, if their number is a multiple of the ranks.
    """

    split = True

    def share(self, full: Sequence[Tensor], sizes: Sizes) -> Tensor:
        q, k, v = full
        tail = q.shape[1:]  # nothing for a bias
        parts = [
            q.reshape(sizes.groups, -1, *tail),
            k.reshape(sizes.groups, sizes.width, *tail),
            v.reshape(sizes.groups, sizes.width, *tail),
        ]
        return joined(parts, 1).reshape(-1, *tail).chunk(sizes.ranks)[sizes.rank]

    def whole(self, shards: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, ...]:
        fused = joined(shards, 0)
        tail = fused.shape[1:]
        rows = [sizes.queries // sizes.groups * sizes.width, sizes.width, sizes.width]
        q, k, v = fused.reshape(sizes.groups, sum(rows), *tail).split(rows, 1)
        return q.reshape(-1, *tail), k.reshape(-1, *tail), v.reshape(-1, *tail)


class GateUp:
    """The gate and up projections in one. Each rank holds its part of the gate above its part of up.

    That is not an even cut of the two stacked, which would give the first rank gate alone: a rank multiplies its two halves
    with each other.
    """

    split = True

    def share(self, full: Sequence[Tensor], sizes: Sizes) -> Tensor:
        return joined([part.chunk(sizes.ranks)[sizes.rank] for part in full], 0)

    def whole(self, shards: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, ...]:
        halves = [shard.chunk(2) for shard in shards]
        return joined([half[0] for half in halves], 0), joined([half[1] for half in halves], 0)


def padded_vocab(vocab: int, ranks: int) -> int:
    """Rows of the embedding over all ranks: the vocabulary, rounded up to a multiple of them."""
    return -(-vocab // ranks) * ranks


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """`torch.cat`, without a copy of a single part."""
    if len(parts) == 1:
        return parts[0]
    import torch

    return torch.cat(list(parts), dim)


SAME, ROWS, COLUMNS = Same(), Cut(0), Cut(1)
VOCABULARY, QKV, GATE_UP = Vocabulary(), QueryKeyValue(), GateUp()
