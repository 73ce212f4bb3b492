"""Questions to a broker that has only just come back: asked again; what was made meanwhile is not taken for another's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.admin import TopicExists
from broker_config.deadline import Deadline
from broker_config.topics import TopicSpec
from schemas.errors import BrokerAway, BrokerError, DeadlineExceeded
from tests.fakes.clock import Clock

Answer = Any
AWAY = KafkaError._DESTROY_BROKER
TOPIC = SimpleNamespace(partitions=[SimpleNamespace(id=0, leader=SimpleNamespace(id=1))], topic_id=Uuid(0, 1))
LEADERLESS = SimpleNamespace(partitions=[SimpleNamespace(id=0, leader=None)], topic_id=Uuid(0, 1))
SPEC = TopicSpec("r.control", 1, 1, {})


class Client:
    """Answers each question with what comes next: an error's code, or a result."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.created: list[list[str]] = []

    def _futures(self, names: Iterable[Any]) -> dict[Any, Future[Any]]:
        found = {}
        for name in names:
            future: Future[Any] = Future()
            answer = self._answers.pop(0)
            if isinstance(answer, int):
                future.set_exception(KafkaException(KafkaError(answer)))
            else:
                future.set_result(answer)
            found[name] = future
        return found

    def create_topics(self, topics: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        self.created.append([topic.topic for topic in topics])
        return self._futures(self.created[-1])

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(topics.topic_names)

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(resources)

    def delete_topics(self, topics: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(topics)

    def list_offsets(self, asked: dict[TopicPartition, Any], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(asked)

    def delete_records(self, cuts: list[TopicPartition], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(cuts)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def client(*answers: Answer) -> AdminClient:
    return cast(AdminClient, Client(*answers))


QUESTIONS: list[tuple[Callable[[AdminClient, Deadline], Any], Any, Any]] = [
    (lambda c, d: admin.describe(c, ["r.control"], d)["r.control"].partitions, TOPIC, 1),
    (lambda c, d: admin.log_ends(c, [("r.control", 0)], d), SimpleNamespace(offset=7), {("r.control", 0): 7}),
    (lambda c, d: admin.delete_topics(c, ["r.control"], d), None, ["r.control"]),
    (lambda c, d: admin.delete_records(c, {("r.control", 0): 5}, d), SimpleNamespace(low_watermark=5), {("r.control", 0): 5}),
]


@pytest.mark.parametrize(
    "code", [AWAY, KafkaError._TRANSPORT, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.NOT_LEADER_FOR_PARTITION]
)
@pytest.mark.parametrize("question", range(len(QUESTIONS)))
def test_a_broker_that_is_back_in_a_moment_is_asked_again(question: int, code: int, clock: Clock) -> None:
    ask, answer, wanted = QUESTIONS[question]
    leaderless = question == 1 and code == KafkaError.NOT_LEADER_FOR_PARTITION
    again = [TOPIC] if leaderless else []  # whether the topic exists
    assert ask(client(code, *again, code, *again, answer), Deadline(30, clock, clock.sleep)) == wanted
    assert clock.slept == ([0.02, 0.02] if leaderless else [0.5, 0.5])


@pytest.mark.parametrize("question", range(len(QUESTIONS)))
def test_until_the_deadline_and_then_the_last_answer_is_raised(question: int, clock: Clock) -> None:
    with pytest.raises(BrokerAway, match="_DESTROY_BROKER"):
        QUESTIONS[question][0](client(AWAY, AWAY, AWAY), Deadline(0.7, clock, clock.sleep))
    assert clock.slept == pytest.approx([0.5, 0.2])


@pytest.mark.parametrize("question", range(len(QUESTIONS)))
def test_a_refusal_is_not_asked_again(question: int) -> None:
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        QUESTIONS[question][0](client(KafkaError.TOPIC_AUTHORIZATION_FAILED), Deadline(30))


def test_a_topic_whose_making_was_cut_short_is_not_taken_for_anothers(clock: Clock) -> None:
    made = client(AWAY, KafkaError.TOPIC_ALREADY_EXISTS, TOPIC)
    assert list(admin.create_topics(made, [SPEC], Deadline(30, clock, clock.sleep))) == ["r.control"]
    assert clock.slept == [0.5]
    with pytest.raises(TopicExists):
        admin.create_topics(client(KafkaError.TOPIC_ALREADY_EXISTS), [SPEC], Deadline(30))


def test_the_making_of_topics_is_tried_until_the_deadline(clock: Clock) -> None:
    with pytest.raises(BrokerAway, match=r"making topic r\.control: _DESTROY_BROKER"):
        admin.create_topics(client(AWAY, AWAY, AWAY), [SPEC], Deadline(0.7, clock, clock.sleep))
    assert clock.slept == pytest.approx([0.5, 0.2])


def test_topics_that_the_broker_made_before_it_went_away_are_not_made_twice(clock: Clock) -> None:
    others = [TopicSpec(name, 1, 1, {}) for name in ("r.a", "r.b", "r.c")]
    fake = Client(None, AWAY, AWAY, None, KafkaError.TOPIC_ALREADY_EXISTS, TOPIC, TOPIC, TOPIC)
    made = admin.create_topics(cast(AdminClient, fake), others, Deadline(30, clock, clock.sleep))
    assert list(made) == ["r.a", "r.b", "r.c"]
    assert fake.created == [["r.a", "r.b", "r.c"], ["r.b", "r.c"]]


def test_a_topic_is_made_once_every_partition_has_a_leader(clock: Clock) -> None:
    made = client(None, KafkaError.UNKNOWN_TOPIC_OR_PART, LEADERLESS, AWAY, TOPIC)
    assert list(admin.create_topics(made, [SPEC], Deadline(30, clock, clock.sleep))) == ["r.control"]
    assert clock.slept == [0.02, 0.02, 0.5]


def test_a_leader_that_does_not_come_is_named_at_the_deadline(clock: Clock) -> None:
    made = client(None, LEADERLESS, LEADERLESS, LEADERLESS)
    with pytest.raises(
        DeadlineExceeded, match=r"waited 0\.03 s for a leader of every partition of r\.control; is a broker down\?"
    ):
        admin.create_topics(made, [SPEC], Deadline(0.03, clock, clock.sleep))
    gone = client(KafkaError.LEADER_NOT_AVAILABLE, TOPIC)
    with pytest.raises(DeadlineExceeded, match=r"waited 0 s for a leader of every partition; is a broker down\?"):
        admin.log_ends(gone, [("r.control", 0)], Deadline(0, clock, clock.sleep))


def test_offsets_of_a_topic_that_does_not_exist_are_an_error_at_once(clock: Clock) -> None:
    missing = client(KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(BrokerError, match=r"the offsets of r\.control\[0\]: _NOENT"):
        admin.log_ends(missing, [("r.control", 0)], Deadline(30, clock, clock.sleep))
    assert clock.slept == []


def test_settings_that_are_read_back_are_asked_for_again_too(clock: Clock) -> None:
    spec = TopicSpec("r.control", 1, 1, {"retention.ms": "-1"})
    made = client(None, TOPIC, AWAY, {"retention.ms": SimpleNamespace(value="-1")})
    assert list(admin.create_topics(made, [spec], Deadline(30, clock, clock.sleep))) == ["r.control"]
    assert clock.slept == [0.5]
