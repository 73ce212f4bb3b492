"""Metrics of a version's groups that need no model."""

from learner.grpo.group_metrics import group_metrics
from tests.fakes.records.two_groups import two_groups


def test_metrics_of_groups() -> None:
    metrics = group_metrics(two_groups())
    assert metrics["reward"] == 1.25
    assert metrics["groups_with_variance"] == 2
    assert metrics["mean_gen_tokens"] == (3 + 1 + 1 + 2) / 4
    assert metrics["mean_prompt_length"] == 2.0
    assert metrics["total_num_tokens"] == 2 * 1 + 2 * 3 + 8
    assert metrics["avg_trajectory_age"] == (1 + 2) / 2
    assert metrics["max_trajectory_age"] == 2
    assert metrics["avg_token_age"] == (1 + 1 + 0 + 0 + 0 + 2 + 2) / 7
    assert {k: v for k, v in metrics.items() if "_of_age_" in k} == {
        "groups_of_age_1": 1.0,
        "groups_of_age_2": 1.0,
        "tokens_of_age_0": 3.0,
        "tokens_of_age_1": 2.0,
        "tokens_of_age_2": 2.0,
    }
    assert metrics["truncation_rate"] == 0.25
    assert not any(name.startswith("reward/") for name in metrics)


def test_metrics_do_not_depend_on_the_order_in_which_groups_came() -> None:
    assert group_metrics(two_groups()) == group_metrics(two_groups()[::-1])
