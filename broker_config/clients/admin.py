"""Making, describing and deleting topics: what was asked for is read back, and every call has a deadline.

A topic is returned only once the broker holds the settings that were asked for and every partition has a leader. Making
`<run>.control` is the lock of a run id, so an existing topic has its own error, `TopicExists`.

A broker that is away, or has only just come back, is asked again until the deadline (`patience`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from broker_config.clients.errors import MOMENTARY, broker_error, explain, kafka_error
from broker_config.clients.patience import NotYet, ask_patiently
from broker_config.deadline import Deadline
from broker_config.topics import Topics, TopicSpec
from schemas.errors import BrokerError

Partition = tuple[str, int]

LEADER_PAUSE_S = 0.02  # a leader is there about 40 ms after the topic was made
ABSENT = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC"})

# Of a partition whose topic was just made, or whose broker has just come back: it has a leader in a moment.
NO_LEADER = frozenset(
    {"_NOENT", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH"}
)


class TopicExists(BrokerError):
    """The broker already has these topics; `names` lists them. For `<run>.control`: the run id is taken."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(f"topics exist already: {', '.join(names)}; topic names are never used twice; choose another run id")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the broker describes it. `topic_id` changes when a topic is deleted and made again under the same name."""

    name: str
    topic_id: str
    partitions: int
    leaderless: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The first offset that can be read, and the offset that the next record will get."""

    start: int
    end: int


def create_topics(
    admin: AdminClient, specs: Iterable[TopicSpec], deadline: Deadline, *, adopt_existing: bool = False
) -> dict[str, str]:
    """Make topics; returns name -> topic id once each has the settings asked for and a leader for every partition.

    Args:
        adopt_existing: topics that exist are not refused but checked like new ones; whether they are empty, the caller checks.

    Raises:
        TopicExists: some exist already (the others were made).
        BrokerError: the broker refuses, or applied other settings than were asked for.
        DeadlineExceeded: not done in time.
    """
    wanted = {spec.name: spec for spec in specs}
    if not wanted:
        return {}
    new = [
        NewTopic(s.name, num_partitions=s.partitions, replication_factor=s.replication_factor, config=dict(s.config))
        for s in wanted.values()
    ]
    existing = _create(admin, new, deadline)
    if existing and not adopt_existing:
        raise TopicExists(existing)
    found = _await_leaders(admin, wanted.keys(), deadline)
    ask_patiently(lambda: _check_applied(admin, wanted, found, deadline), deadline)
    return {name: info.topic_id for name, info in found.items()}


def _create(admin: AdminClient, topics: Collection[NewTopic], deadline: Deadline) -> list[str]:
    """Make them; returns those that existed before."""
    existing: list[str] = []
    left = list(topics)
    cut_short: set[str] = set()  # asked for, but the answer was lost with the broker: if they exist now, this call made them

    def ask() -> list[str]:
        nonlocal left
        away: dict[str, KafkaException] = {}
        for name, future in admin.create_topics(left, request_timeout=_seconds(deadline)).items():
            try:
                _result(future, deadline, f"the broker to make topic {name}")
            except KafkaException as error:
                if kafka_error(error).name() in MOMENTARY:
                    away[name] = error
                elif kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise broker_error(f"making topic {name}", error) from error
                elif name not in cut_short:
                    existing.append(name)
        cut_short.update(away)
        left = [topic for topic in left if topic.topic in away]
        for name, failure in away.items():
            raise broker_error(f"making topic {name}", failure) from failure
        return existing

    return ask_patiently(ask, deadline)


def describe(admin: AdminClient, names: Collection[str], deadline: Deadline) -> dict[str, TopicInfo]:
    """The topics as the broker describes them. One that does not exist, or that the user may not see, is left out.

    Raises:
        BrokerError, DeadlineExceeded
    """
    return ask_patiently(lambda: _describe(admin, names, deadline), deadline) if names else {}


def _describe(admin: AdminClient, names: Collection[str], deadline: Deadline) -> dict[str, TopicInfo]:
    futures = admin.describe_topics(TopicCollection(list(names)), request_timeout=_seconds(deadline))
    found: dict[str, TopicInfo] = {}
    for name, future in futures.items():
        try:
            described = _result(future, deadline, f"the broker to describe topic {name}")
        except KafkaException as error:
            if kafka_error(error).name() in ABSENT:
                continue
            raise broker_error(f"describing topic {name}", error) from error
        leaderless = tuple(p.id for p in described.partitions if p.leader is None or p.leader.id < 0)
        found[name] = TopicInfo(name, _id_text(described.topic_id), len(described.partitions), leaderless)
    return found


def topic_names(admin: AdminClient, deadline: Deadline) -> list[str]:
    """All topics that the user may see, sorted.

    Raises:
        BrokerError, DeadlineExceeded
    """

    def ask() -> list[str]:
        try:
            return sorted(admin.list_topics(timeout=_seconds(deadline)).topics)
        except KafkaException as error:
            if kafka_error(error).name() in ("_TRANSPORT", "_TIMED_OUT"):  # the whole time was used up
                raise deadline.exceeded("the broker to list its topics; is it up?") from error
            raise broker_error("listing topics", error) from error

    return ask_patiently(ask, deadline)


def topics_of_run(admin: AdminClient, run_id: str, deadline: Deadline) -> list[str]:
    """The topics of one run, sorted by name, which is by version too."""
    names = Topics(run_id)
    return [name for name in topic_names(admin, deadline) if name.startswith(names.prefix)]


def delete_topics(admin: AdminClient, names: Collection[str], deadline: Deadline) -> list[str]:
    """Delete topics; returns those that existed. One that is already gone is no error.

    Raises:
        BrokerError, DeadlineExceeded
    """
    deleted: list[str] = []

    def ask() -> list[str]:
        left = [name for name in names if name not in deleted]
        if not left:
            return deleted
        for name, future in admin.delete_topics(left, request_timeout=_seconds(deadline)).items():
            try:
                _result(future, deadline, f"the broker to delete topic {name}")
                deleted.append(name)
            except KafkaException as error:
                if kafka_error(error).name() not in ABSENT:
                    raise broker_error(f"deleting topic {name}", error) from error
        return deleted

    return ask_patiently(ask, deadline)


def delete_records(admin: AdminClient, before: Mapping[Partition, int], deadline: Deadline) -> dict[Partition, int]:
    """Cut partitions: records below the given offset can no longer be read. Returns the first offset that is left of each.

    Raises:
        BrokerError, DeadlineExceeded
    """
    return ask_patiently(lambda: _cut(admin, before, deadline), deadline) if before else {}


def _cut(admin: AdminClient, before: Mapping[Partition, int], deadline: Deadline) -> dict[Partition, int]:
    cuts = [TopicPartition(topic, partition, offset) for (topic, partition), offset in before.items()]
    left: dict[Partition, int] = {}
    for cut, future in admin.delete_records(cuts, request_timeout=_seconds(deadline)).items():
        where = f"{cut.topic}[{cut.partition}]"
        try:
            deleted = _result(future, deadline, f"the broker to cut {where}")
        except KafkaException as error:
            raise broker_error(f"deleting records of {where} below {before[(cut.topic, cut.partition)]}", error) from error
        left[(cut.topic, cut.partition)] = int(deleted.low_watermark)
    return left


def log_bounds(admin: AdminClient, partitions: Collection[Partition], deadline: Deadline) -> dict[Partition, LogBounds]:
    """The first and the next offset of partitions.

    Raises:
        BrokerError: a topic does not exist.
        DeadlineExceeded: no answer, or no leader, in time.
    """
    starts = _offsets(admin, partitions, OffsetSpec.earliest(), deadline)
    ends = log_ends(admin, partitions, deadline)
    return {partition: LogBounds(starts[partition], ends[partition]) for partition in partitions}


def log_ends(admin: AdminClient, partitions: Collection[Partition], deadline: Deadline) -> dict[Partition, int]:
    """The offset that the next record of each partition will get; raises as `log_bounds`."""
    return _offsets(admin, partitions, OffsetSpec.latest(), deadline)


def _offsets(admin: AdminClient, partitions: Collection[Partition], spec: OffsetSpec, deadline: Deadline) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}

    def ask() -> dict[Partition, int]:
        asked = {TopicPartition(*partition): spec for partition in partitions if partition not in offsets}
        for where, future in admin.list_offsets(asked, request_timeout=_seconds(deadline)).items():
            name = f"{where.topic}[{where.partition}]"
            try:
                found = _result(future, deadline, f"the offsets of {name}")
                offsets[(where.topic, where.partition)] = int(found.offset)
            except KafkaException as error:
                # No leader: the topic does not exist, or the broker has only just come back and will have one in a moment.
                if kafka_error(error).name() not in NO_LEADER:
                    raise broker_error(f"asking for the offsets of {name}", error) from error
                if where.topic not in describe(admin, [where.topic], deadline):
                    raise BrokerError(f"asking for the offsets of {name}: {explain(kafka_error(error))}") from error
        if len(offsets) < len(partitions):
            raise NotYet("a leader of every partition; is a broker down?", LEADER_PAUSE_S)
        return offsets

    return ask_patiently(ask, deadline) if partitions else {}


def _await_leaders(admin: AdminClient, names: Collection[str], deadline: Deadline) -> dict[str, TopicInfo]:
    def ask() -> dict[str, TopicInfo]:
        found = _describe(admin, names, deadline)
        waiting = [name for name in names if name not in found or found[name].leaderless]
        if waiting:
            raise NotYet(f"a leader of every partition of {', '.join(waiting)}; is a broker down?", LEADER_PAUSE_S)
        return found

    return ask_patiently(ask, deadline)


def _check_applied(
    admin: AdminClient, wanted: Mapping[str, TopicSpec], found: Mapping[str, TopicInfo], deadline: Deadline
) -> None:
    """Compare what the broker holds with what was asked for; one error names all differences."""
    wrong: list[str] = []
    for name, spec in wanted.items():
        if found[name].partitions != spec.partitions:
            wrong.append(_difference(name, "partitions", str(spec.partitions), str(found[name].partitions)))
    resources = [ConfigResource(ResourceType.TOPIC, name) for name, spec in wanted.items() if spec.config]
    if resources:
        for resource, future in admin.describe_configs(resources, request_timeout=_seconds(deadline)).items():
            try:
                entries = _result(future, deadline, f"the settings of topic {resource.name}")
            except KafkaException as error:
                raise broker_error(f"reading back the settings of topic {resource.name}", error) from error
            for key, asked in wanted[resource.name].config.items():
                got = entries[key].value if key in entries else None
                if got != asked:
                    wrong.append(_difference(resource.name, key, asked, got))
    if wrong:
        raise BrokerError("the broker applied other topic settings than were asked for:\n" + "\n".join(wrong))


_SETTING_OF = {
    "max.message.bytes": "kafka.max_record_mib",
    "min.insync.replicas": "kafka.min_insync_replicas",
    "partitions": "kafka.partitions or kafka.request_partitions",
}


def _difference(topic: str, key: str, asked: str, got: str | None) -> str:
    setting = _SETTING_OF.get(key)
    ours = f", or change {setting} and take a new run id" if setting else ""
    return f"  topic {topic}: {key}: asked {asked}, got {got}; lift what overrides it at the broker (a topic policy){ours}"


def _id_text(topic_id: Uuid) -> str:
    """The id as Kafka's own tools print it."""
    return str(topic_id).translate(str.maketrans("+/", "-_"))


def _seconds(deadline: Deadline) -> float:
    """The time left as a request timeout; librdkafka refuses less than a millisecond."""
    return max(0.001, deadline.remaining())


def _result(future: Future[Any], deadline: Deadline, what: str) -> Any:
    """The future's result. A `KafkaException` is left to the caller, except that no answer in time is `DeadlineExceeded`."""
    try:
        # The request has the same timeout. A little more lets its own failure, which says more, arrive first.
        return future.result(deadline.remaining() + 1.0)
    except FutureTimeout:
        raise deadline.exceeded(what) from None
    except KafkaException as error:
        if kafka_error(error).name() == "_TIMED_OUT":
            raise deadline.exceeded(f"{what}; is the broker up?") from error
        raise
