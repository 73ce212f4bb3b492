"""The last thing that a sender broadcasts: the digest of all it sent, and its own log-probabilities of the probe tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.errors import TransferError
from schemas.weights.probe import PROBE_TOKENS

if TYPE_CHECKING:
    import torch

_MAGIC = 0x57454952_0001
LAST_WORD_WORDS = 3 + PROBE_TOKENS - 1


@dataclass(frozen=True, slots=True)
class LastWord:
    """The sender's digest of all it sent, and its log-probabilities of probe tokens 1.. (float64; empty: no probe)."""

    digest: str
    probe: tuple[float, ...]


def pack_last_word(digest: str, probe: Sequence[float]) -> torch.Tensor:
    """int64 [LAST_WORD_WORDS]: a mark, the digest, the number of log-probabilities, their float64 bits."""
    import torch

    if len(probe) > PROBE_TOKENS - 1:
        raise ValueError(f"{len(probe)} log-probabilities, the probe has at most {PROBE_TOKENS - 1}")
    packed = torch.zeros(LAST_WORD_WORDS, dtype=torch.int64)
    packed[0] = _MAGIC
    packed[1] = int.from_bytes(bytes.fromhex(digest), "little", signed=True)
    packed[2] = len(probe)
    packed[3 : 3 + len(probe)] = torch.tensor(list(probe), dtype=torch.float64).view(torch.int64)
    return packed


def unpack_last_word(packed: torch.Tensor) -> LastWord:
    """Raises: TransferError: what came last is not a last word."""
    import torch

    values: list[int] = packed.tolist()
    if values[0] != _MAGIC or not 0 <= values[2] <= PROBE_TOKENS - 1:
        raise TransferError("the last broadcast is not the sender's digest: both ends do not follow the same plan")
    probe: list[float] = packed[3 : 3 + values[2]].cpu().view(torch.float64).tolist()
    return LastWord(values[1].to_bytes(8, "little", signed=True).hex(), tuple(probe))
