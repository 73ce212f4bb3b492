"""Names and settings of a run's topics. Pure: nothing here talks to a broker.

Invariants: every topic of a run starts with `<run>.`; versions are padded to eight digits, so that the order of names is the
order of versions in every tool; a run id has neither `.` nor `_`, so that no prefix holds another run's topics and no two
names collide in the broker's metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from schemas.config.kafka import KafkaConfig

MIB = 1 << 20
RUN_ID = re.compile(r"[a-z0-9-]{1,64}")
MAX_VERSION = 99_999_999  # eight digits
FILE_DELETE_DELAY_MS = 1000  # a retired version gives its disk space back at once; nobody reads a deleted topic

Single = Literal["control", "status", "requests", "quarantine", "metrics"]
Versioned = Literal["trajectories", "validation"]
Kind = Single | Versioned
SINGLE: tuple[Single, ...] = ("control", "status", "requests", "quarantine", "metrics")
VERSIONED: tuple[Versioned, ...] = ("trajectories", "validation")

_NAME = re.compile(rf"(?P<run>{RUN_ID.pattern})\.(?P<kind>[a-z]+)(?:\.v(?P<version>[0-9]{{8}}))?")


@dataclass(frozen=True, slots=True)
class TopicName:
    """The parts of a topic's name. `version` is None for the topics that a run has only one of."""

    run_id: str
    kind: Kind
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Topics:
    """The names of one run's topics.

    Raises:
        ValueError: `run_id` is not 1 to 64 characters of a-z, 0-9 and `-`.
    """

    run_id: str

    def __post_init__(self) -> None:
        if not RUN_ID.fullmatch(self.run_id):
            raise ValueError(f"run id {self.run_id!r}: must be 1 to 64 characters of a-z, 0-9 and -")

    @property
    def prefix(self) -> str:
        return f"{self.run_id}."

    @property
    def control(self) -> str:
        return f"{self.run_id}.control"

    @property
    def status(self) -> str:
        return f"{self.run_id}.status"

    @property
    def requests(self) -> str:
        return f"{self.run_id}.requests"

    @property
    def quarantine(self) -> str:
        return f"{self.run_id}.quarantine"

    @property
    def metrics(self) -> str:
        return f"{self.run_id}.metrics"

    def trajectories(self, version: int) -> str:
        return self._versioned("trajectories", version)

    def validation(self, version: int) -> str:
        return self._versioned("validation", version)

    def _versioned(self, kind: Versioned, version: int) -> str:
        if not 0 <= version <= MAX_VERSION:
            raise ValueError(f"version {version}: must be 0 to {MAX_VERSION}")
        return f"{self.run_id}.{kind}.v{version:08d}"


def parse(name: str) -> TopicName | None:
    """The parts of a topic's name, or None if it is not a name that `Topics` makes."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    run_id, kind, version = match["run"], match["kind"], match["version"]
    for single in SINGLE:
        if kind == single and version is None:
            return TopicName(run_id, single)
    for versioned in VERSIONED:
        if kind == versioned and version is not None:
            return TopicName(run_id, versioned, int(version))
    return None


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to be made. `config` holds the topic's own settings, with values as Kafka prints them."""

    name: str
    partitions: int
    replication_factor: int = 1
    config: Mapping[str, str] = field(default_factory=dict)


def max_message_bytes(kafka: KafkaConfig) -> int:
    """The largest record batch: a record of `max_record_mib`, plus 1 MiB for its key, headers and framing."""
    return (kafka.max_record_mib + 1) * MIB


def topic_config(kafka: KafkaConfig) -> dict[str, str]:
    """The settings that every topic of a run has."""
    return {
        "retention.ms": "-1",  # the learner retires topics; the broker never drops a record by age
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",  # a producer's wrong clock can neither refuse nor misplace a record
        "max.message.bytes": str(max_message_bytes(kafka)),
        "min.insync.replicas": str(kafka.min_insync_replicas),
        "unclean.leader.election.enable": "false",  # acknowledged records are never traded for availability
        "compression.type": "producer",
        "file.delete.delay.ms": str(FILE_DELETE_DELAY_MS),
    }


def specs_for_run(run_id: str, kafka: KafkaConfig) -> dict[Single, TopicSpec]:
    """The topics that a run has only one of. Making `control` is the lock of the run id, so make it first and alone."""
    names = Topics(run_id)
    config = topic_config(kafka)

    def spec(name: str, partitions: int = 1) -> TopicSpec:
        return TopicSpec(name, partitions, kafka.replication_factor, config)

    return {
        "control": spec(names.control),
        "status": spec(names.status),
        "requests": spec(names.requests, kafka.request_partitions),
        "quarantine": spec(names.quarantine),
        "metrics": spec(names.metrics),
    }


def version_spec(run_id: str, kind: Versioned, version: int, kafka: KafkaConfig) -> TopicSpec:
    """The topic of one target version."""
    names = Topics(run_id)
    name = names.trajectories(version) if kind == "trajectories" else names.validation(version)
    return TopicSpec(name, kafka.partitions, kafka.replication_factor, topic_config(kafka))
