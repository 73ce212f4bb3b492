"""What the arithmetic of two steps depended on, compared. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from learner.checkpoint.manifest import Determinism


def different_facts(recorded: Sequence[Determinism], here: Determinism) -> list[str]:
    """Why a step may come out differently here, such as `threads 2, recorded 1`; empty if nothing differs."""
    different = []
    for name, now in here.model_dump().items():
        others = sorted({str(fact) for facts in recorded if (fact := getattr(facts, name)) != now})
        if others:
            different.append(f"{name} {now}, recorded {' and '.join(others)}")
    return different


def same_layout(recorded: Determinism, here: Determinism) -> bool:
    """Whether state digests can be compared: a digest is made of the ranks' shares, in the order of ranks."""
    return not [fact for fact in different_facts([recorded], here) if "parallel_size" in fact]
