from __future__ import annotations

from producer.environments.reasoning_gym import ReasoningGym
from tests.fakes.producer.episodes import make_completion, make_rollout_request, trajectory_of


def test_reasoning_gym_generates_and_scores() -> None:
    task = ReasoningGym("chain_sum", size=10, validation_size=5, min_digits=1, max_digits=1)
    assert (task.rows("train"), task.rows("validation")) == (10, 5)
    row = task.generate(3, "train")
    assert row == ReasoningGym("chain_sum", size=10, min_digits=1, max_digits=1).generate(3, "train")
    assert row["prompt"] != task.generate(3, "validation")["prompt"]
    fields = {"answer": row["answer"], "metadata": row}
    for text, reward in [(row["answer"], 1.0), (f"well <answer> {row['answer']} </answer>", 1.0), ("no", 0.0)]:
        t = trajectory_of(task, make_rollout_request(max_total_length=200, **fields), make_completion(text))
        assert t.reward == reward


def test_reasoning_gym_has_no_end_even_for_tasks_that_prepare_their_items() -> None:
    task = ReasoningGym("list_functions")
    assert task.rows("train") is None
    assert task.generate((1 << 49) - 1, "train")["prompt"]
    assert task.generate(1001, "train") != task.generate(1, "train")
