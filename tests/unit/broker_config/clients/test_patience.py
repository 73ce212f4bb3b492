"""A question is asked again while the broker is away, with the right pauses, and not after its deadline."""

from __future__ import annotations

import pytest

from broker_config.clients.patience import NotYet, ask_patiently
from broker_config.deadline import Deadline
from schemas.errors import BrokerAway, BrokerError, DeadlineExceeded
from tests.fakes.clock import Clock


class Question:
    """Raises or returns what comes next, and counts how often it was asked."""

    def __init__(self, *answers: Exception | int) -> None:
        self._answers = list(answers)
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


AWAY = BrokerAway("asking: _TRANSPORT")


def test_an_answer_at_once_takes_no_pause() -> None:
    clock = Clock()
    assert ask_patiently(Question(7), Deadline(0, clock, clock.sleep)) == 7
    assert clock.slept == []


def test_each_failure_has_a_pause_of_its_own() -> None:
    clock = Clock()
    question = Question(AWAY, NotYet("a leader", 0.02), AWAY, NotYet("the topic", 1.0), 7)
    assert ask_patiently(question, Deadline(30, clock, clock.sleep)) == 7
    assert clock.slept == [0.5, 0.02, 0.5, 1.0]


def test_the_last_pause_ends_at_the_deadline_and_one_more_try_follows_it() -> None:
    clock = Clock()
    question = Question(AWAY, AWAY, 7)
    assert ask_patiently(question, Deadline(0.8, clock, clock.sleep)) == 7
    assert clock.slept == pytest.approx([0.5, 0.3])


def test_a_broker_that_stays_away_is_the_failure_at_the_deadline() -> None:
    clock = Clock()
    question = Question(AWAY, AWAY, AWAY)
    with pytest.raises(BrokerAway, match="asking: _TRANSPORT") as caught:
        ask_patiently(question, Deadline(1, clock, clock.sleep))
    assert caught.value is AWAY
    assert question.asked == 3


def test_what_is_not_there_at_the_deadline_was_waited_for() -> None:
    clock = Clock()
    cause = KeyError("x")
    last = NotYet("a leader; is a broker down?", 0.2)
    last.__cause__ = cause
    question = Question(NotYet("another thing", 0.2), last)
    with pytest.raises(DeadlineExceeded, match=r"^waited 0\.2 s for a leader; is a broker down\?$") as caught:
        ask_patiently(question, Deadline(0.2, clock, clock.sleep))
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("failure", [BrokerError("refused"), DeadlineExceeded("no answer"), ValueError("our own mistake")])
def test_any_other_failure_ends_the_question_at_once(failure: Exception) -> None:
    clock = Clock()
    question = Question(failure)
    with pytest.raises(type(failure)) as caught:
        ask_patiently(question, Deadline(30, clock, clock.sleep))
    assert caught.value is failure
    assert (question.asked, clock.slept) == (1, [])
