from __future__ import annotations

from typing import Any

import pytest

from producer.environments.exact_match import ExactMatch
from schemas.records.group import FinishReason
from tests.fakes.producer.episodes import make_completion, make_rollout_request, trajectory_of


@pytest.mark.parametrize(
    ("options", "text", "answer", "reward"),
    [
        ({}, " 42\n", "42", 1.0),
        ({"strip": False}, " 42\n", "42", 0.0),
        ({}, "Paris", "paris", 0.0),
        ({"case": False}, "Paris", "paris", 1.0),
        ({}, "42", 42, 1.0),
        ({}, "b", ["a", "b"], 1.0),
        ({}, "the answer is 42", "42", 0.0),
    ],
)
def test_exact_match(options: dict[str, Any], text: str, answer: Any, reward: float) -> None:
    t = trajectory_of(ExactMatch(**options), make_rollout_request(answer=answer), make_completion(text))
    assert t.rewards == {"reward": reward}
    assert t.finish is FinishReason.STOP
