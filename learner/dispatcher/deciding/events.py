"""What happens to the dispatcher (events) and what it wants done (commands). Frozen facts, no behaviour.

The control state is no command: it is whole, so the shell takes the newest (`Dispatcher.take_state`) when it has time for it.

The shell turns Kafka records and messages of rank 0 into events and carries out commands; the result of a command that can be
late or fail comes back as an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.identity import Attempt
from schemas.records.group import TrajectoryGroup
from schemas.records.requests import Request
from schemas.records.seal import Seal
from schemas.records.status import Ack, Failed, Heartbeat, Left, Operator, Report

Kind = Literal["rollout", "validation"]

# --- events ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LearnerReady:
    """Rank 0 has the model and holds `version`. `weights_digest` is that of its weights, for the comparison at F."""

    version: int
    plan_digest: str
    weights_digest: str


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


@dataclass(frozen=True, slots=True)
class NextAsked:
    """Rank 0 is free and wants to know what to do."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Rank 0 listens for the members of the round's transfer groups: (host, port, prefix, nccl_id) of each."""

    rendezvous: Sequence[tuple[str, int, str, str | None]]


@dataclass(frozen=True, slots=True)
class Sent:
    """Rank 0's part of the transfer is over. `failed_groups`: indexes of the groups whose sending failed, with the error."""

    digest: str
    failed_groups: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Trained:
    """Rank 0 has trained `version` and now holds version + 1. `waited`: it had to wait for the batch.

    `weights_digest`: of version + 1, where it is known already; asked for when catching up, for the comparison at F.
    """

    version: int
    waited: bool
    weights_digest: str | None = None


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Rank 0 ends: it was asked to (an interrupt), or, not `ordered`, it cannot go on."""

    reason: str
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """Rank 0 has written everything that comes after the last step."""


Event = (
    LearnerReady
    | StatusRead
    | BeatRead
    | CaughtUp
    | TopicReady
    | GroupRead
    | GroupRefused
    | SealRead
    | NextAsked
    | Offered
    | Sent
    | Trained
    | StopAsked
    | Finished
)

# --- commands -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRequest:
    request: Request
    partition: int


@dataclass(frozen=True, slots=True)
class MakeTopic:
    """Make (or adopt, if empty and unannounced) the topic of a version and start reading it; answered by `TopicReady`."""

    kind: Kind
    version: int


@dataclass(frozen=True, slots=True)
class CloseTopic:
    """Stop reading a version's topic; its records are not needed any more in this incarnation."""

    kind: Kind
    version: int


@dataclass(frozen=True, slots=True)
class WriteSeal:
    seal: Seal


@dataclass(frozen=True, slots=True)
class ReadPast:
    """Tell (`CaughtUp`) when all open version topics have been read to their present ends."""

    beat: int


@dataclass(frozen=True, slots=True)
class AnswerRefit:
    """Rank 0: open a rendezvous for each group and offer it. `groups`: rank offsets of the members; `worlds`: ranks, sender
    included. No group at all: only the digest is wanted."""

    number: int
    version: int
    groups: Sequence[Mapping[str, int]]
    worlds: Sequence[int]


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """Rank 0: train `version` with the sealed records, which the shell hands over in slot order."""

    version: int
    seal: Seal
    seal_offset: int
    catch_up: bool


@dataclass(frozen=True, slots=True)
class AnswerFinish:
    """Rank 0: all versions are trained; write what comes after the last step."""


@dataclass(frozen=True, slots=True)
class AnswerStop:
    reason: str
    finished: bool
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """Rewards of the validation of `version`, by slot; `missing` counts prompts without a result."""

    version: int
    rewards: Mapping[int, float]
    lengths: Mapping[int, int]
    missing: int


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log."""

    text: str
    level: Literal["info", "warning", "error"] = "info"


Command = (
    SendRequest
    | MakeTopic
    | CloseTopic
    | WriteSeal
    | ReadPast
    | AnswerRefit
    | AnswerBatch
    | AnswerFinish
    | AnswerStop
    | ValidationDone
    | Note
)


@dataclass(slots=True)
class Counters:
    """What has been counted so far; part of metrics and of status."""

    failures: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    reissued: int = 0
    hedged: int = 0
    filtered: int = 0
    duplicates: int = 0
    late: int = 0
    ignored_status: int = 0

    def bump(self, table: Literal["failures", "refusals"], name: str) -> None:
        counts: dict[str, int] = getattr(self, table)
        counts[name] = counts.get(name, 0) + 1

    def as_metrics(self) -> dict[str, float]:
        flat: dict[str, Any] = {f"dispatch/failures_{k}": v for k, v in self.failures.items()}
        flat |= {f"dispatch/refused_{k}": v for k, v in self.refusals.items()}
        flat |= {f"dispatch/{name}": count for name, count in self.totals().items()}
        return {k: float(v) for k, v in flat.items()}

    def totals(self) -> dict[str, int]:
        """Counts that have no kinds."""
        return {
            "reissued": self.reissued,
            "hedged": self.hedged,
            "filtered": self.filtered,
            "duplicates": self.duplicates,
            "late": self.late,
            "ignored_status": self.ignored_status,
        }


@dataclass(frozen=True, slots=True)
class Filled:
    """Where the accepted group of a draw lies, and what the scheduler wants to know of it."""

    key: Attempt
    partition: int
    offset: int
    sha256: str
    content_sha256: str
    reward: float
    tokens: int
