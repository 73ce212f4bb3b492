"""Receiving all weights of one version before any of them is loaded.

Invariant: a `Staged` is complete and its digest equals the sender's; anything else is a TransferError and leaves the weights in
use alone. The engine's workers and the scripted engine receive through the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.errors import TransferError
from schemas.weights.checksum import checksum, combine, empty_bucket, words
from schemas.weights.last_word import LAST_WORD_WORDS, unpack_last_word
from schemas.weights.plan import WeightPlan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Staged:
    """Weights received and checked. buckets: a flat buffer [items] for each; probe: the learner's log-probabilities."""

    plan: WeightPlan
    buckets: tuple[torch.Tensor, ...]
    digest: str
    probe: tuple[float, ...]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every (name, tensor) in the plan's order, as views of the buckets."""
        for bucket, buffer in zip(self.plan.buckets, self.buckets, strict=True):
            for name, shape, start, end in self.plan.places(bucket):
                yield name, buffer[start:end].view(shape)


def receive(plan: WeightPlan, broadcast: Callable[[torch.Tensor], None], device: torch.device | str = "cpu") -> Staged:
    """Take part in every broadcast of a transfer; memory: one copy of the weights on `device`.

    Raises:
        TransferError: the transfer broke off, or what arrived is not what was sent.
    """
    import torch

    buckets = []
    for bucket in plan.buckets:
        buffer = empty_bucket(plan, bucket, device)
        broadcast(words(buffer))
        buckets.append(buffer)
    packed = torch.zeros(LAST_WORD_WORDS, dtype=torch.int64, device=device)
    broadcast(packed)
    last = unpack_last_word(packed)
    digest = combine(plan, [checksum(buffer) for buffer in buckets])
    if digest != last.digest:
        raise TransferError(f"the weights received have digest {digest}, the learner sent {last.digest}; nothing was loaded")
    return Staged(plan, tuple(buckets), digest, last.probe)
