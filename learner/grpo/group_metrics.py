"""Metrics of a version's groups that need no model: rewards, lengths, ages. Pure, float64, exact sums in slot order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from learner.grpo.advantages import mean_and_std
from schemas.records.group import TrajectoryGroup


def group_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """NeMo RL's names where it has them.

    `avg_trajectory_age` counts a group by its oldest token, `avg_token_age` every generated token, `max_trajectory_age` is the
    worst of all; `groups_of_age_<k>` and `tokens_of_age_<k>` are the histograms. `groups_with_variance` is the number of groups
    whose rewards differ, the only ones that teach something (DAPO samples until all are such, arXiv:2503.14476 sec. 3.2).
    `reward/<component>` appears when an environment gives more than one.

    Raises:
        ValueError: no groups.
    """
    if not groups:
        raise ValueError("no groups")
    groups = sorted(groups, key=lambda group: group.request.slot)
    trajectories = [t for group in groups for t in group.trajectories]
    rewards = [t.reward for t in trajectories]
    mean, std = mean_and_std(rewards)
    generated = [t.generated_tokens for t in trajectories]
    prompts = [len(group.prompt) for group in groups for _ in group.trajectories]
    # Of the oldest token: a group is as stale as its stalest part. Tokens of one group may differ after a refit in its middle.
    ages = [group.request.version - group.oldest_version for group in groups]
    tokens = _tokens_by_age(groups)
    metrics = {
        "reward": mean,
        "reward_std": std,
        "mean_gen_tokens": _mean(generated),
        "max_gen_tokens": float(max(generated)),
        "mean_prompt_length": _mean(prompts),
        "total_num_tokens": float(sum(prompts) + sum(len(t.tokens) for t in trajectories)),
        "avg_trajectory_age": _mean(ages),
        "max_trajectory_age": float(max(ages)),
        "avg_token_age": sum(age * count for age, count in tokens.items()) / max(sum(tokens.values()), 1),
        "truncation_rate": _mean([float(t.truncated) for t in trajectories]),
        "groups_with_variance": float(sum(len({t.reward for t in group.trajectories}) > 1 for group in groups)),
    }
    metrics |= {f"groups_of_age_{age}": float(count) for age, count in sorted(Counter(ages).items())}
    metrics |= {f"tokens_of_age_{age}": float(count) for age, count in sorted(tokens.items())}
    components = sorted({name for t in trajectories for name in t.rewards})
    # A single component is the reward itself.
    if len(components) > 1:
        for name in components:
            metrics[f"reward/{name}"] = _mean([t.rewards.get(name, 0.0) for t in trajectories])
    return metrics


def _tokens_by_age(groups: Sequence[TrajectoryGroup]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for group in groups:
        for t in group.trajectories:
            for span in t.spans:
                counts[group.request.version - span.version] += span.end - span.start
    return counts


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
