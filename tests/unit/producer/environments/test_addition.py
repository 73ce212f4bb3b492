from __future__ import annotations

from producer.environments.addition import Addition
from tests.fakes.producer.episodes import make_completion, make_rollout_request, trajectory_of


def test_addition_holds_out_a_fifth_and_scores_the_last_integer() -> None:
    task = Addition()
    held = {task.generate(row, "validation")["prompt"] for row in range(48)}
    assert len(held) == 48 == task.rows("validation")
    assert not held & {task.generate(row, "train")["prompt"] for row in range(3000)}
    assert len({task.generate(row, "train")["prompt"] for row in range(3000)}) == 320
    row = task.generate(0, "train")
    asked = make_rollout_request(answer=row["answer"], max_total_length=99)
    for text, reward in [(f"the sum is {row['answer']}.", 1.0), (f"{row['answer']} or 99", 0.0), ("no idea", 0.0)]:
        assert trajectory_of(task, asked, make_completion(text)).reward == reward
