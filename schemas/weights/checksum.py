"""Checksums of buckets, and the digest of a version's weights.

A checksum is the same on every device, thread count and reduction order, because it is integer arithmetic modulo 2**64; it finds
transmission faults, not forgers.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from schemas.weights.plan import Bucket, WeightPlan

if TYPE_CHECKING:
    import torch

ROW_WORDS = 1 << 15
"""Words that share one reduction of the checksum: small enough for a core's cache."""

_ROW_FACTOR = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def empty_bucket(plan: WeightPlan, bucket: Bucket, device: torch.device | str = "cpu") -> torch.Tensor:
    """A zeroed flat buffer [bucket.items] of the plan's dtype; zeros also fill the padding on both ends."""
    import torch

    return torch.zeros(bucket.items, dtype=getattr(torch, plan.dtype), device=device)


def words(buffer: torch.Tensor) -> torch.Tensor:
    """A bucket's buffer as int64 words: what is broadcast and summed, whatever the dtype."""
    import torch

    return buffer.view(torch.int64)


def checksum(buffer: torch.Tensor) -> int:
    """64-bit checksum of a bucket's flat buffer, order-sensitive, computed on the buffer's device.

    Words are folded (so that differences in high bits reach the low ones), multiplied by odd pseudo-random position factors
    and summed by rows of `ROW_WORDS`; the rows' sums are the digits of a polynomial.
    """
    import torch

    flat = words(buffer)
    factors = _factors(str(flat.device))
    total = 0
    whole = flat.numel() // ROW_WORDS * ROW_WORDS
    rows = list(flat[:whole].view(-1, ROW_WORDS).split(1 if flat.device.type == "cpu" else 1 << 10))
    sums = [((r >> 32).bitwise_and_(0xFFFFFFFF).bitwise_xor_(r).mul_(factors)).sum(dim=1) for r in rows]
    tail = flat[whole:]
    if tail.numel():
        sums.append(((tail >> 32).bitwise_and_(0xFFFFFFFF).bitwise_xor_(tail).mul_(factors[: tail.numel()])).sum().view(1))
    for value in torch.cat(sums).tolist() if sums else []:
        total = (total * _ROW_FACTOR + value) & _MASK
    return total


@functools.lru_cache(maxsize=8)
def _factors(device: str) -> torch.Tensor:
    import torch

    z = np.arange(1, ROW_WORDS + 1, dtype=np.uint64) * np.uint64(_ROW_FACTOR)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy(((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64)).to(device)


def combine(plan: WeightPlan, checksums: Iterable[int]) -> str:
    """The digest of a version's weights, 16 hex digits: of the plan and its buckets' checksums, in order."""
    digest = hashlib.blake2b(bytes.fromhex(plan.digest), digest_size=8)
    for value in checksums:
        digest.update(value.to_bytes(8, "little"))
    return digest.hexdigest()
