from __future__ import annotations

import pytest

from producer.engine.protocol import Completion, Ending
from producer.environments.tiny_inc import TinyInc, held_out, increment
from schemas.records.group import Span
from tests.fakes.producer.episodes import make_completion, make_rollout_request, trajectory_of
from tests.fakes.producer.word_tokenizer import EOS, word_tokenizer


@pytest.mark.parametrize(
    ("text", "ending", "reward", "exact"),
    [
        ("4205", Ending.STOP, 1.0, 1.0),
        ("4209", Ending.STOP, 0.75, 0.0),
        ("42", Ending.STOP, 0.5, 0.0),
        ("42055", Ending.LENGTH, 0.8, 0.0),
        ("4205", Ending.LENGTH, 0.8, 0.0),
        ("", Ending.STOP, 0.0, 0.0),
        ("1111", Ending.STOP, 0.0, 0.0),
    ],
)
def test_tiny_inc_counts_right_characters_and_validates_the_whole(text: str, ending: Ending, reward: float, exact: float) -> None:
    reply = make_completion(text, ending=ending)
    t = trajectory_of(TinyInc(), make_rollout_request("3194>", answer="4205"), reply)
    assert t.reward == pytest.approx(reward)
    t = trajectory_of(TinyInc(), make_rollout_request("3194>", answer="4205", kind="validation"), reply)
    assert t.rewards == {"exact": exact}


def test_tiny_inc_does_not_overlook_a_special_token_in_the_answer() -> None:
    first, second = (word_tokenizer().encode(text, add_special_tokens=False) for text in ("42", "05"))
    reply = Completion([*first, 0, *second, EOS], [-1.0] * 6, (Span(0, 0, 6),), Ending.STOP)
    assert trajectory_of(TinyInc(), make_rollout_request("3194>", answer="4205"), reply).reward == pytest.approx(0.4)


def test_tiny_inc_never_trains_on_what_it_validates() -> None:
    task = TinyInc()
    validation = [task.generate(row, "validation") for row in range(200)]
    assert len({row["prompt"] for row in validation}) == 200
    assert all(held_out(row["prompt"][:-1]) and row["answer"] == increment(row["prompt"][:-1]) for row in validation)
    train = [task.generate(row, "train")["prompt"][:-1] for row in [*range(500), 1 << 48, (1 << 49) - 1]]
    assert not any(held_out(text) for text in train)
    assert len(set(train)) > 450
    assert increment("3194") == "4205"
