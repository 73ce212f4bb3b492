"""What a transport is: a way for rank 0 to broadcast tensors to the workers of producers' engines, for one transfer at a time.

    learner: sender = transport.sender(host, timeout_s); sender.open(world) -> Rendezvous, announced on `control`
             sender.connect(); for each tensor: work = sender.start(tensor); sender.finish(work); sender.close()
    worker:  receiver = transport.join(rendezvous, rank, world, timeout_s, device); receiver.broadcast(tensor) for each;
             receiver.close()

Invariants: rank 0 of a group is the sender, ranks 1.. are the workers of its members; a group lives for one transfer; whatever
goes wrong between the ends is a `TransferError`, within the time that both were given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the sender of one transfer group is found. A transport fills in what its members need, and leaves the rest empty."""

    host: str = ""
    port: int = 0
    prefix: str = ""
    nccl_id: str | None = None


class Sender(Protocol):
    """Rank 0's end of one transfer group."""

    def open(self, world: int) -> Rendezvous:
        """Be there for `world` - 1 members, and return at once. Raises: TransferError."""
        ...

    def connect(self) -> None:
        """Block until all members have joined. Raises: TransferError: not all did in time."""
        ...

    def start(self, tensor: torch.Tensor) -> Any:
        """Begin the broadcast of one contiguous int64 tensor; what it returns is handed to `finish`. Raises: TransferError."""
        ...

    def finish(self, work: Any) -> None:
        """Wait until the tensor may be overwritten. Raises: TransferError."""
        ...

    def close(self) -> None:
        """Release the group; safe at any time, and twice."""
        ...


class Receiver(Protocol):
    """A worker's end of one transfer group, joined."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Fill the contiguous int64 tensor with the sender's next one. Raises: TransferError."""
        ...

    def close(self) -> None:
        """Leave the group; members in the middle of a broadcast fail."""
        ...


class Transport(Protocol):
    """One file of this folder, as `find.find_transport` gives it."""

    @property
    def needs_gpu(self) -> bool:
        """Tensors travel from GPU to GPU, and workers stage them on their own; otherwise all of it happens in main memory."""

    @property
    def survives_failure(self) -> bool:
        """Whether a worker can receive again after a transfer that failed; if not, its engine must be started again."""

    def sender(self, host: str, timeout_s: float) -> Sender:
        """host: the address that members reach this machine at; timeout_s: from `open` to the last broadcast."""
        ...

    def join(self, at: Rendezvous, rank: int, world: int, timeout_s: float, device: torch.device | str) -> Receiver:
        """Join as `rank`; blocks until the group is complete. device: the worker's, for its tensors if `needs_gpu`.

        Raises:
            TransferError: nobody is there, or not all members came in time.
        """
        ...
