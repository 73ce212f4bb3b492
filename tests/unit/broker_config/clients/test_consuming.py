"""Looking up a topic before it is read: asked again while the broker is away, an error at once if it is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from broker_config.clients.consuming import assign, look_up
from broker_config.deadline import Deadline
from schemas.errors import BrokerError, DeadlineExceeded
from tests.fakes.clock import Clock

AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))


def topic(error: int | None = None, partitions: int = 1) -> SimpleNamespace:
    """The metadata of topic `t`."""
    described = SimpleNamespace(error=None if error is None else KafkaError(error), partitions=dict.fromkeys(range(partitions)))
    return SimpleNamespace(topics={"t": described})


class Metadata:
    """Answers each look-up with what comes next, and keeps the assignment."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.assigned: list[tuple[str, int, int]] = []

    def list_topics(self, name: str, timeout: float) -> Any:
        assert name == "t" and timeout > 0
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def assign(self, partitions: list[Any]) -> None:
        self.assigned = [(p.topic, p.partition, p.offset) for p in partitions]


def test_a_look_up_waits_for_a_broker_that_is_away() -> None:
    clock = Clock()
    consumer = Metadata(AWAY, topic(KafkaError.LEADER_NOT_AVAILABLE), topic(partitions=3))
    assert look_up(cast(Consumer, consumer), "t", Deadline(30, clock, clock.sleep)) == {0, 1, 2}
    assert clock.slept == [0.2, 0.2]


def test_a_look_up_ends_at_its_deadline_with_the_last_cause() -> None:
    clock = Clock()
    consumer = Metadata(AWAY, AWAY, topic(KafkaError.LEADER_NOT_AVAILABLE))
    with pytest.raises(DeadlineExceeded, match=r"waited 0\.3 s for the broker to look up topic t: LEADER_NOT_AVAILABLE"):
        look_up(cast(Consumer, consumer), "t", Deadline(0.3, clock, clock.sleep))
    assert clock.slept == pytest.approx([0.2, 0.1])


@pytest.mark.parametrize(
    "answer",
    [topic(KafkaError.UNKNOWN_TOPIC_OR_PART), KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))],
)
def test_a_topic_that_is_not_there_is_an_error_at_once(answer: Any) -> None:
    clock = Clock()
    with pytest.raises(BrokerError, match="looking up topic t: UNKNOWN_TOPIC_OR_PART"):
        look_up(cast(Consumer, Metadata(answer)), "t", Deadline(30, clock, clock.sleep))
    assert clock.slept == []


def test_partitions_are_assigned_only_if_all_of_them_exist() -> None:
    consumer = Metadata(topic(partitions=2), topic(partitions=2))
    assign(cast(Consumer, consumer), {("t", 1): 5}, Deadline(30))
    assert consumer.assigned == [("t", 1, 5)]
    with pytest.raises(BrokerError, match="topic t has no partition 2; it has 2"):
        assign(cast(Consumer, consumer), {("t", 1): 7, ("t", 2): 0}, Deadline(30))
    assert consumer.assigned == [("t", 1, 5)]
