"""Which prompt fills a slot: a pure function, so that no cursor has to be kept, shared or restored.

Draw 0 of the slots, in order of (version, slot), walks a seeded permutation of the rows, a new one each epoch. Later draws
(a prompt failed, or its group was filtered) are seeded choices from all rows and may repeat a row of the epoch.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

_ROUNDS = 6  # of the Feistel network; four already pass for random, two more cost nothing here
_ENDLESS_BASE = 1 << 48  # rows of later draws of a generator without end: far above every ordinal


def _hash(*parts: int) -> int:
    data = b"".join(part.to_bytes(8, "little") for part in parts)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=b"weir.draw").digest(), "little")


def _permute(index: int, size: int, seed: int, epoch: int) -> int:
    """Position `index` of the permutation (seed, epoch) of range(size): a Feistel network, walked until it lands inside."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(_ROUNDS):
            left, right = right, left ^ (_hash(seed, epoch, turn, right) & mask)
        index = left << half | right
        if index < size:
            return index


@lru_cache(maxsize=1 << 16)  # asked when a slot is given out, and again when its group is checked
def row_of(seed: int, rows: int | None, prompts_per_step: int, version: int, slot: int, draw: int) -> int:
    """The row whose prompt is draw `draw` of `slot` in target version `version`.

    Args:
        seed: `run.seed`.
        rows: rows of the data set (D); None for a generator without end, whose row is its ordinal.
        prompts_per_step: N.
    """
    ordinal = version * prompts_per_step + slot
    if rows is None:
        return ordinal if draw == 0 else _ENDLESS_BASE + _hash(seed, version, slot, draw) % _ENDLESS_BASE
    if draw > 0:
        return _hash(seed, version, slot, draw) % rows
    epoch, index = divmod(ordinal, rows)
    return _permute(index, rows, seed, epoch)


def last_version(max_num_steps: int, max_num_epochs: int | None, rows: int | None, prompts_per_step: int) -> int:
    """Versions that the run trains: min(max_num_steps, floor(D * E / N)); the remainder of the rows is dropped."""
    if rows is None or max_num_epochs is None:
        return max_num_steps
    return min(max_num_steps, rows * max_num_epochs // prompts_per_step)
