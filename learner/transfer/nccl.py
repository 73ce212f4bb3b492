"""The sending end of a transfer group over NCCL, through vLLM's communicator. Not run on a GPU yet.

The unique id is minted here, once a round, and travels in the offer: no store, no port, nothing to unpickle. NCCL calls have
no timeout: a timer aborts the communicator when the transfer's time is over. vLLM is imported by rank 0 alone, here.
"""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any

from schemas.errors import TransferError
from schemas.weights.plan import WeightPlan

if TYPE_CHECKING:
    import torch


class NcclSender:
    """One group over NCCL; `Sender` of `learner.transfer.sending`, opened and closed as `GlooSender` is."""

    def __init__(self, plan: WeightPlan, host: str, timeout_s: float) -> None:
        """host: unused, so that both back ends are made alike; NCCL's own sockets follow NCCL_SOCKET_IFNAME."""
        self._plan = plan
        self._timeout_s = timeout_s
        self._world = 0
        self._communicator: Any = None
        self._timer: threading.Timer | None = None
        self._over = False
        self.nccl_id: str | None = None

    def open(self, world: int) -> tuple[str, int, str]:
        """Mint `nccl_id` for the offer; host, port and prefix are empty."""
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

        self._world = world
        self.nccl_id = base64.b64encode(bytes(NCCLLibrary().ncclGetUniqueId().internal)).decode()
        self._timer = threading.Timer(self._timeout_s, self._abort)
        self._timer.daemon = True
        self._timer.start()
        return "", 0, ""

    def connect(self) -> None:
        import torch
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

        if self.nccl_id is None:
            raise TransferError("the group was not opened, or is closed")
        self._communicator = uid_init_process_group(base64.b64decode(self.nccl_id), 0, self._world, torch.cuda.current_device())
        self._check()

    def start(self, tensor: torch.Tensor) -> Any:
        if self._communicator is None:
            raise TransferError("the group is not connected")
        self._check()
        staged = tensor.to("cuda")
        self._communicator.broadcast(staged, src=0)
        return staged

    def finish(self, work: Any) -> None:
        import torch

        torch.cuda.current_stream().synchronize()
        self._check()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._communicator is not None:
            self._communicator.destroy()
        self._communicator = self._timer = self.nccl_id = None

    def _abort(self) -> None:
        self._over = True
        communicator = self._communicator
        if communicator is not None:
            communicator.nccl.ncclCommAbort(communicator.comm)
            communicator.disabled = True

    def _check(self) -> None:
        if self._over:
            raise TransferError(f"the NCCL transfer was aborted after {self._timeout_s} s")
