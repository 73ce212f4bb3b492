"""Advantages of one group: how much better each trajectory did than its siblings.

GRPO takes the reward minus the group's mean, over the group's deviation (arXiv:2402.03300 sec. 4.1.2). RLOO takes the mean of the
others, which leaves the estimate unbiased (arXiv:2402.14740 sec. 2.3). The division makes groups count more whose rewards hardly
differ; Dr. GRPO leaves it out (arXiv:2503.20783 sec. 3.1, "question-level difficulty bias").

Everything is float64 with exact sums and a two-pass variance. In float32, or with E[x^2] - E[x]^2, equal rewards leave a
rounding residue as their deviation, and dividing by it gives advantages in the thousands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

STD_EPSILON = 1e-6
"""NeMo RL's value; the paper has none."""


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and Bessel-corrected standard deviation; the deviation of equal values, or of a single one, is exactly 0."""
    # By comparison: even with an exact sum the mean of three times 0.95 differs from 0.95 in its last bit.
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
    # Alone it is its own baseline; Bessel's correction would divide by 0.
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    values = [float(reward) for reward in rewards]
    whole = mean_and_std(values)
    # With `leave_one_out` the deviation is that of the others too, so the one success among failures has a deviation of 0 and
    # keeps its plain difference, while its siblings are divided by theirs.
    advantages = []
    for index, value in enumerate(values):
        baseline, std = mean_and_std(values[:index] + values[index + 1 :]) if leave_one_out else whole
        advantage = value - baseline
        advantages.append(advantage / (std + STD_EPSILON) if normalize and std > 0 else advantage)
    return advantages
