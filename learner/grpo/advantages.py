"""Advantages of one group: how much better each trajectory did than its siblings.

Everything is float64 with exact sums and a two-pass variance. In float32, or with E[x^2] - E[x]^2, equal rewards leave a
rounding residue as their deviation, and dividing by it gives advantages in the thousands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

STD_EPSILON = 1e-6


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and Bessel-corrected standard deviation; the deviation of equal values, or of a single one, is exactly 0."""
    first = values[0]
    if all(value == first for value in values):
        return first, 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def group_advantages(rewards: Sequence[float], *, leave_one_out: bool, normalize: bool) -> list[float]:
    """Reward minus baseline for each of the G trajectories, divided by (deviation + 1e-6) when `normalize`.

    The baseline and the deviation are those of all rewards, or of all others with `leave_one_out`. Where the deviation is 0
    the difference is left as it is. A group of one has advantage 0.
    """
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    values = [float(reward) for reward in rewards]
    whole = mean_and_std(values)
    advantages = []
    for index, value in enumerate(values):
        baseline, std = mean_and_std(values[:index] + values[index + 1 :]) if leave_one_out else whole
        advantage = value - baseline
        advantages.append(advantage / (std + STD_EPSILON) if normalize and std > 0 else advantage)
    return advantages
