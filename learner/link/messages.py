"""Everything that rank 0 and its dispatcher process send each other. One question, one answer.

Invariant: a message is one of the frozen dataclasses below, the same class at both ends; who adds a question finds every place
that must answer it by mypy (`assert_never`). Messages are pickled: both ends are processes of one learner on one host.

| question of rank 0 | answer |
|---|---|
| (none: the dispatcher speaks first) | `ClaimWon` |
| `NextQuestion` | `NextAnswer`, within `ANSWER_S` |
| `ManifestQuestion` | `ManifestFacts` |
| every other one | `Done` |
| any, if the dispatcher cannot serve the run | `RunRefused` |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.weights.transports.protocol import Rendezvous

# --- questions of the training loop ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LearnerReady:
    """Rank 0 has the model and holds `version`. `weights_digest` is that of its weights, for the comparison at the frontier."""

    version: int
    plan_digest: str
    weights_digest: str


@dataclass(frozen=True, slots=True)
class NextQuestion:
    """Rank 0 is free and wants to know what to do."""


@dataclass(frozen=True, slots=True)
class RendezvousOpen:
    """Rank 0 listens for the members of the round's transfer groups, in the order in which `StartRefit` named them."""

    rendezvous: Sequence[Rendezvous]


@dataclass(frozen=True, slots=True)
class WeightsSent:
    """Rank 0's part of the transfer is over. `failed_groups`: indexes of the groups whose sending failed, with the error."""

    digest: str
    failed_groups: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class VersionTrained:
    """Rank 0 has trained `version` and now holds version + 1. `waited`: it had to wait for the batch.

    `weights_digest`: of version + 1, where it is known already; given when catching up, for the comparison at the frontier.
    """

    version: int
    waited: bool
    weights_digest: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A trained step, to be committed: `offsets` are the next ones of its topic by partition.

    Answered once the record is in Kafka.
    """

    step: int
    seal_offset: int
    offsets: Mapping[int, int]
    state_digest: str | None
    weights_digest: str | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Rank 0 ends: somebody asked for it (an interrupt), or, not `ordered`, it cannot continue."""

    reason: str
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class RunFinished:
    """Rank 0 has written everything that comes after the last step."""


# --- questions about checkpoints, on the other socket ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManifestQuestion:
    """Who this learner is, and where one that resumes from here continues to read."""


@dataclass(frozen=True, slots=True)
class FenceQuestion:
    """Whether the run is still this learner's: `control` is read to its end before the answer."""


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The oldest checkpoint that is kept is of version `oldest` and needs nothing before these offsets.

    offsets: by name of the run's single topics ("control", "status"); requests: by partition.
    """

    oldest: int
    offsets: Mapping[str, int]
    requests: Mapping[int, int]


# --- answers --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimWon:
    """The run is this learner's. `lost_from`: versions from there on were lost, and are trained anew with other data."""

    uuid: str
    incarnation: int
    lost_from: int | None = None
    losses: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunRefused:
    """The run cannot be claimed, or not be served any further. `lost_data`: for what the broker no longer has; otherwise the
    input is wrong."""

    error: str
    lost_data: bool


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for has been done."""


@dataclass(frozen=True, slots=True)
class KeepWaiting:
    """There is nothing to do yet; `reason` says for a person what is awaited."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartRefit:
    """Open a rendezvous for each transfer group and offer it.

    groups: rank offsets of the members, by group; worlds: ranks of each group, the sender included. No group at all: only the
    digest of the weights is wanted.
    """

    number: int
    version: int
    groups: Sequence[Mapping[str, int]]
    worlds: Sequence[int]


@dataclass(frozen=True, slots=True)
class TrainVersion:
    """Train `version` with these records, in slot order."""

    version: int
    records: Sequence[bytes]
    seal_offset: int
    catch_up: bool
    offsets: Mapping[int, int]
    counters: Mapping[str, float]
    recorded_state: str | None = None
    """Digest of the state after this version when it was trained before, if it was and that was recorded."""


@dataclass(frozen=True, slots=True)
class FinishRun:
    """All versions are trained; write what comes after the last step."""


@dataclass(frozen=True, slots=True)
class EndRun:
    """The run is over under this learner. `finished`: all steps were trained; `ordered`: somebody asked for it."""

    reason: str
    finished: bool
    ordered: bool = False


Work = KeepWaiting | StartRefit | TrainVersion | FinishRun | EndRun


@dataclass(frozen=True, slots=True)
class ValidationFigures:
    """Metrics of a validation that ended between two questions."""

    version: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NextAnswer:
    """What rank 0 does next, with the validations that ended since the last answer."""

    work: Work
    validations: Sequence[ValidationFigures] = ()


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """For a checkpoint of now: next offsets of control, status, requests (by partition) and metrics; ids of the run's topics."""

    uuid: str
    incarnation: int
    control: int
    status: int
    requests: Mapping[int, int]
    metrics: int
    topic_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Alive:
    """A sign of life: the answer takes its time, and somebody works on it."""


LoopQuestion = (
    LearnerReady | NextQuestion | RendezvousOpen | WeightsSent | VersionTrained | StepOutcome | StopRequest | RunFinished
)
SaveQuestion = ManifestQuestion | FenceQuestion | CheckpointSaved
Question = LoopQuestion | SaveQuestion
Answer = ClaimWon | RunRefused | Done | NextAnswer | ManifestFacts
Message = Question | Answer | Alive
