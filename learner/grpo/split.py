"""Which data-parallel rank trains which slots: a pure function of the token counts, so that all processes and replays agree."""

from __future__ import annotations

from collections.abc import Sequence


def split_by_tokens(token_counts: Sequence[int], dp_size: int) -> list[list[int]]:
    """Slots of each rank, ascending: the same number everywhere, tokens balanced, ties decided by slot and rank.

    `token_counts[slot]` are all tokens of the slot's group. The largest group goes first, each to the rank with the fewest
    tokens that has a place left.

    Raises:
        ValueError: the number of slots is not a multiple of `dp_size`.
    """
    if len(token_counts) % dp_size:
        raise ValueError(f"{len(token_counts)} slots cannot be dealt evenly to {dp_size} data-parallel ranks")
    # As many slots everywhere: optimizer steps and micro batches are cut by count, and every rank must take part in each.
    places = len(token_counts) // dp_size
    slots: list[list[int]] = [[] for _ in range(dp_size)]
    tokens = [0] * dp_size
    for slot in sorted(range(len(token_counts)), key=lambda s: (-token_counts[s], s)):
        rank = min((r for r in range(dp_size) if len(slots[r]) < places), key=lambda r: (tokens[r], r))
        slots[rank].append(slot)
        tokens[rank] += token_counts[slot]
    return [sorted(own) for own in slots]
