"""The channel for commands from rank 0 to the other ranks, in its own gloo group.

Invariants: every rank obeys the same commands in the same order; rank 0 sends one at least every `keepalive_s` seconds while it
waits for anything; a rank that hears nothing for `rank_timeout_s` seconds exits with an error. Bytes travel as uint8 tensors,
never as objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from learner import commands
from learner.commands import EndRank, ReplayCommand, TrainingCommand
from schemas.errors import DeadlineExceeded

# Far below the shortest sensible `rank_timeout_s`, far above what a broadcast of a few bytes costs.
KEEPALIVE_S = 10.0


class Ranks:
    """One end of the command channel, on every rank."""

    def __init__(self, rank_timeout_s: float) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._timeout_s = rank_timeout_s
        self.keepalive_s = min(KEEPALIVE_S, rank_timeout_s / 3)
        # gloo also where gradients travel by NCCL: commands are bytes in host memory, and its deadline ends a wait with an error.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=rank_timeout_s)) if self.size > 1 else None

    def send(self, command: TrainingCommand | ReplayCommand | EndRank) -> None:
        """Rank 0: send all other ranks their next command.

        Raises:
            DeadlineExceeded: one of them took nothing for `rank_timeout_s`, or has died.
        """
        if self._group is None:
            return
        try:
            self._broadcast(commands.encode(command))
        except RuntimeError as error:
            raise DeadlineExceeded(
                f"the command {command.do} did not reach every rank: one took nothing for {self._timeout_s:g} s "
                f"(learner.rank_timeout_s), or died: {error}"
            ) from error

    def receive(self) -> TrainingCommand | ReplayCommand | EndRank:
        """Ranks 1..: the next command.

        Raises:
            DeadlineExceeded: nothing was heard for `rank_timeout_s`.
        """
        try:
            body = self._broadcast(None)
        except RuntimeError as error:
            raise DeadlineExceeded(
                f"rank {self.rank} heard nothing from rank 0 for {self._timeout_s:g} s (learner.rank_timeout_s), "
                f"or rank 0 died: {error}"
            ) from error
        return commands.decode(body)

    def send_records(self, shares: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Rank 0: send each rank its records, `shares[rank]`; returns rank 0's own."""
        # Point to point: a broadcast of the whole version would send every rank all records for a share of them.
        for rank in range(1, self.size):
            dist.send(_tensor(b"".join(shares[rank])), rank, group=self._group)
        return list(shares[0])

    def receive_records(self, sizes: Sequence[int]) -> list[bytes]:
        """Ranks 1..: the records of this rank. `sizes`: of each, in bytes."""
        # The sizes came with the command, so the receiver has made room before the bytes arrive.
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        dist.recv(data, 0, group=self._group)
        whole, records, at = data.numpy().tobytes(), [], 0
        for size in sizes:
            records.append(whole[at : at + size])
            at += size
        return records

    def gather(self, value: int) -> list[int]:
        """`value` of every rank, by rank; the same list on all ranks."""
        if self._group is None:
            return [value]
        values = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(values, torch.tensor([value], dtype=torch.int64), group=self._group)
        return [int(v) for v in values]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        if self._group is not None:
            dist.barrier(group=self._group)

    def _broadcast(self, body: bytes | None) -> bytes:
        length = torch.tensor([len(body) if body is not None else 0], dtype=torch.int64)
        dist.broadcast(length, 0, group=self._group)
        data = _tensor(body) if body is not None else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self._group)
        return bytes(data.numpy().tobytes())


def _tensor(data: bytes) -> Tensor:
    # A copy: bytes are read only, and torch warns of a tensor that could write into them.
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
