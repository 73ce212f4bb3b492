"""Weights over NCCL, from GPU to GPU, through vLLM's communicator. Not run on a GPU yet.

The unique id is minted by the sender, once a round, and travels with the rendezvous: no store, no port, nothing to unpickle.
NCCL's own sockets follow NCCL_SOCKET_IFNAME. Its calls have no timeout and cannot be interrupted: a timer aborts the communicator
when the transfer's time is over. vLLM is imported by rank 0 and by vLLM's workers, here.
"""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any

from schemas.errors import TransferError
from schemas.weights.transports.protocol import Rendezvous

if TYPE_CHECKING:
    import torch


class Watchdog:
    """Aborts a communicator at the deadline. While NCCL is still connecting there is nothing to abort: see `check`."""

    def __init__(self, timeout_s: float) -> None:
        self._lock = threading.Lock()
        self._communicator: Any = None
        self._over = False
        self._timeout_s = timeout_s
        self._timer = threading.Timer(timeout_s, self._abort)
        self._timer.daemon = True
        self._timer.start()

    def guard(self, communicator: Any) -> None:
        with self._lock:
            self._communicator = communicator
        self.check()

    def check(self) -> None:
        """Raises: TransferError: the time is over."""
        if self._over:
            raise TransferError(f"the NCCL transfer was aborted after {self._timeout_s} s")

    def stop(self) -> None:
        self._timer.cancel()

    def _abort(self) -> None:
        with self._lock:
            self._over = True
            if self._communicator is not None:
                self._communicator.nccl.ncclCommAbort(self._communicator.comm)
                self._communicator.disabled = True


class NcclGroup:
    """A joined group. Every method raises TransferError once it was aborted."""

    def __init__(self, nccl_id: str, rank: int, world: int, watchdog: Watchdog) -> None:
        import torch
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

        self._watchdog = watchdog
        device = torch.accelerator.current_device_index()
        self._communicator = uid_init_process_group(base64.b64decode(nccl_id), rank, world, device)
        watchdog.guard(self._communicator)

    def start_broadcast(self, tensor: torch.Tensor) -> None:
        """Queue the broadcast of a contiguous GPU tensor from rank 0; `finish` waits for it."""
        self._watchdog.check()
        self._communicator.broadcast(tensor, src=0)

    def finish(self) -> None:
        import torch

        torch.cuda.current_stream().synchronize()
        self._watchdog.check()

    def broadcast(self, tensor: torch.Tensor) -> None:
        self.start_broadcast(tensor)
        self.finish()

    def close(self) -> None:
        self._watchdog.stop()
        self._communicator.destroy()


class NcclSender:
    """Rank 0's end of one group."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._world = 0
        self._nccl_id: str | None = None
        self._watchdog: Watchdog | None = None
        self._group: NcclGroup | None = None

    def open(self, world: int) -> Rendezvous:
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

        self._world = world
        self._nccl_id = base64.b64encode(bytes(NCCLLibrary().ncclGetUniqueId().internal)).decode()
        self._watchdog = Watchdog(self._timeout_s)
        return Rendezvous(nccl_id=self._nccl_id)

    def connect(self) -> None:
        if self._nccl_id is None or self._watchdog is None:
            raise TransferError("the group was not opened, or is closed")
        self._group = NcclGroup(self._nccl_id, 0, self._world, self._watchdog)

    def start(self, tensor: torch.Tensor) -> Any:
        if self._group is None:
            raise TransferError("the group is not connected")
        staged = tensor.to("cuda")
        self._group.start_broadcast(staged)
        return staged

    def finish(self, work: Any) -> None:
        if self._group is None:
            raise TransferError("the group is not connected")
        self._group.finish()

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._group is not None:
            self._group.close()
        self._group = self._watchdog = self._nccl_id = None


class Nccl:
    """The transport of GPUs."""

    needs_gpu = True
    survives_failure = False

    def sender(self, host: str, timeout_s: float) -> NcclSender:
        return NcclSender(timeout_s)

    def join(self, at: Rendezvous, rank: int, world: int, timeout_s: float, device: torch.device | str) -> NcclGroup:
        if at.nccl_id is None:
            raise TransferError("the learner does not send over NCCL: set refit.backend to the same value on both sides")
        return NcclGroup(at.nccl_id, rank, world, Watchdog(timeout_s))


TRANSPORT = Nccl()
