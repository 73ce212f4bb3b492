"""Questions to a broker that has only just come back: asked again; what was made meanwhile is not taken for another's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.admin import TopicExists
from broker_config.deadline import Deadline
from broker_config.topics import TopicSpec
from schemas.errors import BrokerAway, BrokerError, DeadlineExceeded

Answer = Any
AWAY = KafkaError._DESTROY_BROKER
TOPIC = SimpleNamespace(partitions=[SimpleNamespace(id=0, leader=SimpleNamespace(id=1))], topic_id=Uuid(0, 1))
SPEC = TopicSpec("r.control", 1, 1, {})


class Client:
    """Answers each question with what comes next: an error's code, or a result."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)

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
        return self._futures(topic.topic for topic in topics)

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(["r.control"])

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(resources)

    def delete_topics(self, topics: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(topics)

    def list_offsets(self, asked: dict[TopicPartition, Any], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(asked)

    def delete_records(self, cuts: list[TopicPartition], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._futures(cuts)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "RETRY_S", 0.0)


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
def test_a_broker_that_is_back_in_a_moment_is_asked_again(question: int, code: int) -> None:
    ask, answer, wanted = QUESTIONS[question]
    again = [TOPIC] if question == 1 and code == KafkaError.NOT_LEADER_FOR_PARTITION else []  # whether the topic is there
    assert ask(client(code, *again, code, *again, answer), Deadline(30)) == wanted


@pytest.mark.parametrize("question", range(len(QUESTIONS)))
def test_until_the_deadline_and_then_the_last_answer_is_told(question: int) -> None:
    with pytest.raises((BrokerAway, DeadlineExceeded), match="_DESTROY_BROKER"):
        QUESTIONS[question][0](client(AWAY, AWAY), Deadline(0))


@pytest.mark.parametrize("question", range(len(QUESTIONS)))
def test_a_refusal_is_not_asked_again(question: int) -> None:
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        QUESTIONS[question][0](client(KafkaError.TOPIC_AUTHORIZATION_FAILED), Deadline(30))


def test_a_topic_whose_making_was_cut_short_is_not_taken_for_anothers() -> None:
    made = client(AWAY, KafkaError.TOPIC_ALREADY_EXISTS, TOPIC)
    assert list(admin.create_topics(made, [SPEC], Deadline(30))) == ["r.control"]
    with pytest.raises(TopicExists):
        admin.create_topics(client(KafkaError.TOPIC_ALREADY_EXISTS), [SPEC], Deadline(30))


def test_settings_that_are_read_back_are_asked_for_again_too() -> None:
    spec = TopicSpec("r.control", 1, 1, {"retention.ms": "-1"})
    made = client(None, TOPIC, AWAY, {"retention.ms": SimpleNamespace(value="-1")})
    assert list(admin.create_topics(made, [spec], Deadline(30))) == ["r.control"]
