"""The same transfer over NCCL, through vLLM's own communicator. Not run on a GPU yet.

The learner mints NCCL's unique id and sends it with the offer, so there is no store and no port. A broadcast cannot be
interrupted and has no timeout of its own: a watchdog aborts the communicator when the transfer's time is up. An offer without an
id means gloo.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_process_group

from producer.refit.gloo_engine import GlooEngine, Group, JoinInfo
from schemas.errors import TransferError


class NcclGroup:
    """A communicator under a watchdog. Once aborted, making the group and `broadcast` raise TransferError."""

    def __init__(self, communicator: Any, watchdog: Watchdog) -> None:
        self._communicator = communicator
        self._watchdog = watchdog
        watchdog.guard(communicator)

    def broadcast(self, tensor: torch.Tensor) -> None:
        self._communicator.broadcast(tensor, src=0)
        torch.cuda.current_stream().synchronize()
        self._watchdog.check()

    def close(self) -> None:
        self._watchdog.stop()
        self._communicator.destroy()


class Watchdog:
    """Aborts a communicator at the deadline. While NCCL is still connecting there is nothing to abort: see `check`."""

    def __init__(self, timeout_s: float) -> None:
        self._lock = threading.Lock()
        self._communicator: Any = None
        self._over = False
        self._timeout_s = timeout_s
        self._timer = threading.Timer(timeout_s, self._bark)
        self._timer.daemon = True
        self._timer.start()

    def guard(self, communicator: Any) -> None:
        with self._lock:
            self._communicator = communicator
        self.check()

    def check(self) -> None:
        if self._over:
            raise TransferError(f"the NCCL transfer was aborted after {self._timeout_s} s")

    def stop(self) -> None:
        self._timer.cancel()

    def _bark(self) -> None:
        with self._lock:
            self._over = True
            if self._communicator is not None:
                self._communicator.nccl.ncclCommAbort(self._communicator.comm)
                self._communicator.disabled = True


class NcclEngine(GlooEngine):
    """Stages on the worker's device, where the checksums are computed too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._over_nccl = False

    def join(self, info: JoinInfo, rank: int) -> Group:
        self._over_nccl = info.nccl_id is not None
        if info.nccl_id is None:
            return super().join(info, rank)
        watchdog = Watchdog(info.timeout_s)
        offered = NCCLWeightTransferInitInfo(rank_offset=info.rank_offset, world_size=info.world, nccl_unique_id_b64=info.nccl_id)
        return NcclGroup(worker_init_process_group(offered, self.parallel_config), watchdog)

    def staging_device(self) -> torch.device:
        return self.device if self._over_nccl else super().staging_device()
