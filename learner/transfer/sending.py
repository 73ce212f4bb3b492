"""Sending the weights of one version: the learner's side of the transfer groups of a refit round.

The tensors come from a gather that is a collective of all ranks, so the iterator is always drained to its end, also when
nobody is left to send to; a failed group stops receiving, the others go on. Every tensor is copied into its bucket before
the next one is asked for. The digest is computed once, for all groups, and also for none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from schemas.errors import TransferError
from schemas.weights.gloo import GlooGroup, GlooRendezvous, pack_last_word
from schemas.weights.plan import Bucket, WeightPlan, checksum, combine, empty_bucket, words

if TYPE_CHECKING:
    import torch


class Sender(Protocol):
    """The sending end of one transfer group, for one transfer."""

    def connect(self) -> None:
        """Block until all members have joined. Raises: TransferError: not all did in time."""
        ...

    def start(self, tensor: torch.Tensor) -> Any:
        """Begin the broadcast of one contiguous int64 tensor. Raises: TransferError."""
        ...

    def finish(self, work: Any) -> None:
        """Wait until the tensor may be overwritten. Raises: TransferError."""
        ...

    def close(self) -> None:
        """Release the group; safe at any time, and twice."""
        ...


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


class GlooSender:
    """One group over gloo: `open`, `connect`, `send` once, `close`."""

    def __init__(self, plan: WeightPlan, host: str, timeout_s: float) -> None:
        """timeout_s: from `open` to the last broadcast."""
        self.nccl_id: str | None = None
        self._plan = plan
        self._host = host
        self._timeout_s = timeout_s
        self._rendezvous: GlooRendezvous | None = None
        self._group: GlooGroup | None = None

    def open(self, world: int) -> tuple[str, int, str]:
        """Listen for `world` - 1 members, and return (host, port, prefix) for the offer at once. Raises: TransferError."""
        self._rendezvous = GlooRendezvous(self._host, world, self._timeout_s)
        return self._rendezvous.host, self._rendezvous.port, self._rendezvous.prefix

    def connect(self) -> None:
        if self._rendezvous is None:
            raise TransferError("the group was not opened, or is closed")
        self._group = self._rendezvous.join()

    def start(self, tensor: torch.Tensor) -> Any:
        if self._group is None:
            raise TransferError("the group is not connected")
        # gloo sends from host memory; the copy is waited for, so the gather that made the tensor is complete.
        staged = tensor.cpu()
        return staged, self._group.start_broadcast(staged)

    def finish(self, work: Any) -> None:
        if self._group is None:
            raise TransferError("the group is not connected")
        self._group.finish(work[1])

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], probe_logprobs: Sequence[float]) -> str:
        """`broadcast` to this one group. Returns the digest. Raises: TransferError: after `tensors` was drained."""
        sent = broadcast(self._plan, [self], tensors, probe_logprobs)
        if sent.failed:
            raise sent.failed[0]
        return sent.digest

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._group = self._rendezvous = None
