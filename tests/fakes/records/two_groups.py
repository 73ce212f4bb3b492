"""Two groups of two trajectories that differ in everything a batch is made of: turns, ages, lengths, truncation."""

from __future__ import annotations

import numpy as np

from schemas.records.group import FinishReason, Span, Trajectory, TrajectoryGroup
from tests.fakes.records.groups import make_group, make_trajectory


def trajectory(tokens: list[int], mask: list[int], versions: list[int], reward: float, *, truncated: bool = False) -> Trajectory:
    """`versions` gives the version of each token with mask 1."""
    return make_trajectory(
        tokens=tokens,
        mask=mask,
        logprobs=[-0.5 - i if m else 0.0 for i, m in enumerate(mask)],
        spans=[Span(v, i, i + 1) for i, v in zip(np.flatnonzero(mask).tolist(), versions, strict=True)],
        finish=FinishReason.LENGTH if truncated else FinishReason.STOP,
        rewards={"exact": reward},
    )


def group(slot: int, prompt: list[int], *trajectories: Trajectory, version: int = 7) -> TrajectoryGroup:
    return make_group(version, slot, prompt=prompt, trajectories=trajectories)


def two_groups() -> list[TrajectoryGroup]:
    multi_turn = trajectory([20, 21, 22, 23], [1, 0, 1, 1], [6, 6, 7], 1.0)
    return [
        group(1, [5, 6, 7], trajectory([30], [1], [7], 0.0), trajectory([31, 32], [1, 1], [5, 5], 4.0, truncated=True)),
        group(0, [8], multi_turn, trajectory([24], [1], [7], 0.0)),
    ]
