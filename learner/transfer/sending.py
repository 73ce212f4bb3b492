"""Sending the weights of one version: the learner's side of the transfer groups of a refit round.

The tensors come from a gather that is a collective of all ranks, so the iterator is always drained to its end, also when
nobody is left to send to; a failed group stops receiving, the others continue. Every tensor is copied into its bucket before
the next one is asked for. The digest is computed once, for all groups, and also for none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.errors import TransferError
from schemas.weights.checksum import checksum, combine, empty_bucket, words
from schemas.weights.last_word import pack_last_word
from schemas.weights.plan import Bucket, WeightPlan
from schemas.weights.transports.protocol import Sender

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Sent:
    """What `broadcast` did: the digest of the weights, and which groups (by position) failed, and why."""

    digest: str
    failed: dict[int, TransferError]


def broadcast(
    plan: WeightPlan, senders: Sequence[Sender], tensors: Iterable[tuple[str, torch.Tensor]], probe_logprobs: Sequence[float]
) -> Sent:
    """Send all tensors, then the digest with the learner's probe log-probabilities, to every connected group.

    `tensors` may come in any order, but one near the plan's keeps fewer buckets in memory; each is cast to the plan's dtype.

    Raises:
        ValueError: the tensors are not those of the plan (after draining them; every group is left without a digest).
    """
    failed: dict[int, TransferError] = {}
    checksums: list[int] = []
    for buffer in _buckets(plan, tensors):
        checksums.append(checksum(buffer))
        _to_all(senders, words(buffer), failed)
    digest = combine(plan, checksums)
    _to_all(senders, pack_last_word(digest, probe_logprobs), failed)
    return Sent(digest, failed)


def _to_all(senders: Sequence[Sender], tensor: torch.Tensor, failed: dict[int, TransferError]) -> None:
    """One tensor to every group that has not failed: all at once, then wait for each."""
    works: dict[int, Any] = {}
    for position, sender in enumerate(senders):
        if position not in failed:
            try:
                works[position] = sender.start(tensor)
            except TransferError as error:
                failed[position] = error
    for position, work in works.items():
        try:
            senders[position].finish(work)
        except TransferError as error:
            failed[position] = error


def _buckets(plan: WeightPlan, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[torch.Tensor]:
    """Full buckets in the plan's order. Drains `tensors` whatever happens."""
    homes: dict[str, tuple[int, Bucket, tuple[int, ...], int, int]] = {
        name: (number, bucket, shape, start, end)
        for number, bucket in enumerate(plan.buckets)
        for name, shape, start, end in plan.places(bucket)
    }
    open_buckets: dict[int, torch.Tensor] = {}
    missing = [bucket.last - bucket.first for bucket in plan.buckets]
    following = 0
    problem: str | None = None
    for name, tensor in tensors:
        home = homes.pop(name, None)
        if home is None:
            problem = problem or f"{name} is not in the plan, or came twice"
        elif tuple(tensor.shape) != home[2]:
            problem = problem or f"{name} is {tuple(tensor.shape)}, planned as {home[2]}"
        if problem is not None or home is None:
            continue
        number, bucket, _, start, end = home
        if number not in open_buckets:
            open_buckets[number] = empty_bucket(plan, bucket, tensor.device)
        open_buckets[number][start:end].copy_(tensor.detach().reshape(-1))
        missing[number] -= 1
        while following < len(missing) and not missing[following]:
            yield open_buckets.pop(following)
            following += 1
    if problem is None and homes:
        problem = f"{len(homes)} tensors did not come, {next(iter(homes))} first"
    if problem is not None:
        raise ValueError(f"the weights are not those of the plan: {problem}")
