"""Two groups of two trajectories that differ in everything a batch is made of: turns, ages, lengths, truncation."""

import numpy as np

from schemas.identity import Attempt
from schemas.records.group import FinishReason, Span, Trajectory, TrajectoryGroup


def trajectory(tokens: list[int], mask: list[int], versions: list[int], reward: float, *, truncated: bool = False) -> Trajectory:
    """`versions` gives the version of each token with mask 1."""
    spans = [Span(v, i, i + 1) for i, v in zip(np.flatnonzero(mask).tolist(), versions, strict=True)]
    return Trajectory(
        tokens=np.array(tokens, dtype="<u4"),
        mask=np.array(mask, dtype="|u1"),
        logprobs=np.array([-0.5 - i if m else 0.0 for i, m in enumerate(mask)], dtype="<f4"),
        spans=tuple(spans),
        finish=FinishReason.LENGTH if truncated else FinishReason.STOP,
        rewards={"exact": reward},
    )


def group(slot: int, prompt: list[int], *trajectories: Trajectory, version: int = 7) -> TrajectoryGroup:
    return TrajectoryGroup(
        run="r",
        kind="rollout",
        request=Attempt(version, slot, 0, 0),
        row=0,
        incarnation=0,
        min_version=version - 1,
        producer="p",
        prompt=np.array(prompt, dtype="<u4"),
        sampling={},
        trajectories=trajectories,
        seconds=1.0,
    )


def two_groups() -> list[TrajectoryGroup]:
    multi_turn = trajectory([20, 21, 22, 23], [1, 0, 1, 1], [6, 6, 7], 1.0)
    return [
        group(1, [5, 6, 7], trajectory([30], [1], [7], 0.0), trajectory([31, 32], [1, 1], [5, 5], 4.0, truncated=True)),
        group(0, [8], multi_turn, trajectory([24], [1], [7], 0.0)),
    ]
