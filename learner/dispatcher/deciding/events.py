"""What happens to the dispatcher. Frozen facts, no behaviour.

The shell turns Kafka records into these; questions of rank 0 (`learner/link/messages.py`) are events as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from learner.dispatcher.state.slots import Kind
from learner.link.messages import (
    LearnerReady,
    NextQuestion,
    RendezvousOpen,
    RunFinished,
    StopRequest,
    VersionTrained,
    WeightsSent,
)
from schemas.records.group import TrajectoryGroup
from schemas.records.seal import Seal
from schemas.records.status import Ack, Failed, Heartbeat, Left, Operator, Report


@dataclass(frozen=True, slots=True)
class StatusRead:
    """A status record of this run, in log order."""

    record: Report | Heartbeat | Ack | Failed | Left | Operator


@dataclass(frozen=True, slots=True)
class BeatRead:
    """One of this incarnation's own beats came back."""

    number: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All open version topics have been read to where they ended when beat `number` was read."""

    number: int


@dataclass(frozen=True, slots=True)
class TopicReady:
    """The topic of a version exists and is being read."""

    kind: Kind
    version: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class GroupRead:
    """A valid record of a version topic, in the order of its partition."""

    group: TrajectoryGroup
    partition: int
    offset: int
    sha256: str
    content_sha256: str


@dataclass(frozen=True, slots=True)
class GroupRefused:
    """A record of a version topic that may not be trained; it is in quarantine already."""

    kind: Kind
    version: int
    key: str | None
    producer: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class SealRead:
    """The first well-formed seal of a version, read from the log."""

    seal: Seal
    offset: int


LearnerEvent = LearnerReady | NextQuestion | RendezvousOpen | WeightsSent | VersionTrained | StopRequest | RunFinished
Event = StatusRead | BeatRead | CaughtUp | TopicReady | GroupRead | GroupRefused | SealRead | LearnerEvent
