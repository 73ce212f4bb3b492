"""Weights over gloo, from main memory to main memory.

Rank 0 sends, everybody else receives; a group lives for one transfer. It touches no global process group, so it works inside
torchrun processes and inside inference workers. The store listens on the given host alone, under a prefix minted for the
round. The timeout is one budget for joining and all broadcasts together.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from schemas.errors import TransferError
from schemas.weights.transports.protocol import Rendezvous

if TYPE_CHECKING:
    import torch


class GlooGroup:
    """A joined group. Every method raises TransferError when a member is gone or the group's time is over."""

    def __init__(self, store: Any, group: Any, ends: float) -> None:
        self._store = store
        self._group = group
        self._ends = ends

    def start_broadcast(self, tensor: torch.Tensor) -> Any:
        """Begin a broadcast of a contiguous CPU tensor from rank 0; `finish` waits for it."""
        from torch._C._distributed_c10d import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = _left(self._ends, "a broadcast")
        with _transfer_errors("broadcast"):
            return self._group.broadcast([tensor], options)

    def finish(self, work: Any) -> None:
        with _transfer_errors("broadcast"):
            work.wait(_left(self._ends, "a broadcast"))

    def broadcast(self, tensor: torch.Tensor) -> None:
        self.finish(self.start_broadcast(tensor))

    def close(self) -> None:
        """Drop the connections; peers in the middle of a broadcast see them reset."""
        self._group = None
        self._store = None


class GlooRendezvous:
    """The sender's end before anybody has joined: the store listens on `host`:`port` only."""

    def __init__(self, host: str, world: int, timeout_s: float, port: int = 0) -> None:
        """Raises: TransferError: `host` is no address of this machine, or the port is taken."""
        from torch.distributed import TCPStore

        self.host = host
        self.world = world
        self.prefix = secrets.token_hex(8)
        self._ends = time.monotonic() + timeout_s
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, port), family=family, backlog=max(128, world))
        except OSError as error:
            raise TransferError(f"cannot listen on {host}:{port} for weight transfers: {error}; check refit.host") from error
        self.port: int = listener.getsockname()[1]
        with _transfer_errors(f"listening on {host}:{self.port}"):
            # The store takes the descriptor over, and with it the one address that it is bound to.
            self._store = TCPStore(
                host,
                self.port,
                world,
                is_master=True,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def join(self) -> GlooGroup:
        """Wait for all members. Raises: TransferError: not all were there in time."""
        return _form(self._store, self.prefix, 0, self.world, self.host, self._ends)

    def close(self) -> None:
        self._store = None


def join_group(host: str, port: int, prefix: str, rank: int, world: int, timeout_s: float) -> GlooGroup:
    """Join as a receiver. Raises: TransferError: no sender there, or not all members in time."""
    from torch.distributed import TCPStore

    ends = time.monotonic() + timeout_s
    with _transfer_errors(f"joining the transfer at {host}:{port} as rank {rank} of {world}"):
        store = TCPStore(host, port, world, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
    return _form(store, prefix, rank, world, _address_towards(host, port), ends)


def _form(store: Any, prefix: str, rank: int, world: int, address: str, ends: float) -> GlooGroup:
    from torch.distributed import PrefixStore
    from torch.distributed.distributed_c10d import ProcessGroupGloo

    left = _left(ends, "all members")
    store.set_timeout(left)
    # torch offers the options and the address to listen on only under these names.
    options = ProcessGroupGloo._Options()  # noqa: SLF001
    options._timeout = left  # noqa: SLF001
    with _transfer_errors(f"waiting for the {world} members of the transfer group"):
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]  # noqa: SLF001
        return GlooGroup(store, ProcessGroupGloo(PrefixStore(prefix, store), rank, world, options), ends)


def _address_towards(host: str, port: int) -> str:
    """This machine's address on the route to the sender: gloo listens there and nowhere else."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise TransferError(f"no route to {host}: {error}; check refit.host") from error


def _left(ends: float, what: str) -> timedelta:
    left = ends - time.monotonic()
    if left <= 0:
        raise TransferError(f"the transfer's time was over while waiting for {what}")
    # gloo counts in milliseconds, and takes 0 for no limit.
    return timedelta(milliseconds=max(1, math.ceil(left * 1000)))


@contextlib.contextmanager
def _transfer_errors(doing: str) -> Iterator[None]:
    """torch raises RuntimeError and subclasses for everything that goes wrong between peers."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TransferError(f"weight transfer failed while {doing}: {reason}") from error


class GlooSender:
    """Rank 0's end of one group."""

    def __init__(self, host: str, timeout_s: float) -> None:
        self._host = host
        self._timeout_s = timeout_s
        self._rendezvous: GlooRendezvous | None = None
        self._group: GlooGroup | None = None

    def open(self, world: int) -> Rendezvous:
        self._rendezvous = GlooRendezvous(self._host, world, self._timeout_s)
        return Rendezvous(self._rendezvous.host, self._rendezvous.port, self._rendezvous.prefix)

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

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._group = self._rendezvous = None


class Gloo:
    """The transport of CPUs, and of GPUs that NCCL cannot connect."""

    needs_gpu = False
    survives_failure = True

    def sender(self, host: str, timeout_s: float) -> GlooSender:
        return GlooSender(host, timeout_s)

    def join(self, at: Rendezvous, rank: int, world: int, timeout_s: float, device: torch.device | str) -> GlooGroup:
        return join_group(at.host, at.port, at.prefix, rank, world, timeout_s)


TRANSPORT = Gloo()
