"""Where `control` ends: an outage of the broker is waited out, and a refusal is not."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from broker_config.deadline import Deadline
from broker_config.topics import Topics
from learner.dispatcher.takeover import claim
from learner.dispatcher.takeover.claim import ControlLog
from schemas.config.kafka import KafkaConfig
from schemas.errors import BrokerError, DeadlineExceeded
from tests.fakes.clock import Clock


class Consumer:
    """Answers each question for the end with what comes next: an error's code, or an offset."""

    def __init__(self) -> None:
        self.answers: list[tuple[bool, int]] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert (partition.topic, partition.partition) == ("r.control", 0) and timeout > 0
        failed, number = self.answers.pop(0)
        if failed:
            raise KafkaException(KafkaError(number))
        return 0, number


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    made = Consumer()
    monkeypatch.setattr(claim, "make_consumer", lambda *_: made)
    return made


AWAY = (True, KafkaError._TRANSPORT)


def end(seconds: float, clock: Clock) -> int:
    control = ControlLog(KafkaConfig(), "127.0.0.1:1", Topics("r"), 0)
    return control._end(Deadline(seconds, clock, clock.sleep))


def test_an_outage_is_waited_out(consumer: Consumer) -> None:
    clock = Clock()
    consumer.answers = [AWAY, (True, KafkaError.NOT_LEADER_FOR_PARTITION), (False, 7)]
    assert end(30, clock) == 7
    assert clock.slept == [1.0, 1.0]


def test_an_outage_that_lasts_too_long_names_its_key_and_the_last_cause(consumer: Consumer) -> None:
    clock = Clock()
    consumer.answers = [AWAY, AWAY, AWAY]
    why = r"waited 1\.5 s for the broker to say where control ends \(kafka\.outage_timeout_s\): asking: _TRANSPORT"
    with pytest.raises(DeadlineExceeded, match=why):
        end(1.5, clock)
    assert clock.slept == [1.0, 0.5]


def test_a_refusal_ends_the_wait_at_once(consumer: Consumer) -> None:
    clock = Clock()
    consumer.answers = [(True, KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(BrokerError, match="asking where control ends: TOPIC_AUTHORIZATION_FAILED"):
        end(30, clock)
    assert clock.slept == []
