from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from producer.engine.protocol import Completion, Ending
from producer.environments.base import ContextFull, TrajectoryBuilder, named_rewards
from schemas.records.group import FinishReason, Span
from tests.fakes.producer.episodes import make_completion, make_rollout_request


def test_builder_shifts_spans_and_masks_the_environments_tokens() -> None:
    builder = TrajectoryBuilder(make_rollout_request())
    builder.add(make_completion("ab", version=4))
    builder.add_environment([9, 9])
    builder.add(make_completion("c", version=5, ending=Ending.LENGTH))
    t = builder.finish({"right": 1.0, "short": -0.5})
    assert t.mask.tolist() == [1, 1, 1, 0, 0, 1]
    assert t.logprobs.tolist() == [-0.25, -0.25, -0.25, 0, 0, -0.25]
    assert t.spans == (Span(4, 0, 3), Span(5, 5, 6))
    assert [array.dtype.str for array in (t.tokens, t.mask, t.logprobs)] == ["<u4", "|u1", "<f4"]
    assert (t.finish, t.reward) == (FinishReason.LENGTH, 0.5)


def test_builder_keeps_account_of_room() -> None:
    builder = TrajectoryBuilder(make_rollout_request("abcd", max_new_tokens=4, max_total_length=12))
    assert (builder.room, builder.space) == (4, 7)
    builder.add(make_completion("xy", ending=Ending.LENGTH))
    builder.add_environment([9, 9, 9, 9])
    assert (builder.room, builder.space) == (1, 1)
    assert len(builder.context) == 11
    with pytest.raises(ContextFull):
        builder.add_environment([9, 9])
    assert len(builder.context) == 11


def test_builder_refuses_an_empty_response_and_uneven_logprobs() -> None:
    with pytest.raises(ValueError, match="no token"):
        TrajectoryBuilder(make_rollout_request()).finish(1.0)
    with pytest.raises(ValueError, match="log-prob"):
        TrajectoryBuilder(make_rollout_request()).add(Completion([1, 2], [-0.5], (Span(0, 0, 2),), Ending.STOP))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), {}, "1.0", None, {"a": "b"}, {"a": float("nan")}, {1: 1.0}])
def test_a_score_that_is_no_number_is_an_error(score: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        named_rewards(score)


def test_scores_become_named_components() -> None:
    assert named_rewards(True) == {"reward": 1.0}
    assert named_rewards(np.float32(0.5)) == {"reward": 0.5}  # type: ignore[arg-type]
    assert named_rewards({"a": 1, "b": 0.5}) == {"a": 1.0, "b": 0.5}
