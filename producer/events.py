"""What happens to a producer (events) and what it wants done (commands). Frozen data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from producer.engine.protocol import Loaded, TransferOffer
from schemas.identity import Attempt
from schemas.records.control import Claim, State
from schemas.records.group import Kind
from schemas.records.requests import Request
from schemas.records.status import Ack, Failed, FailureKind, Left

Key = tuple[Kind, Attempt]

# --- events ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlRead:
    """A control record, with its offset."""

    record: Claim | State
    offset: int


@dataclass(frozen=True, slots=True)
class RequestRead:
    request: Request


@dataclass(frozen=True, slots=True)
class Published:
    """The group of this request is in the log."""

    key: Key


@dataclass(frozen=True, slots=True)
class RolloutEnded:
    """A request ended without a group. `failure` None: it was cancelled."""

    key: Key
    failure: FailureKind | None
    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """The engine is frozen."""

    round: int


@dataclass(frozen=True, slots=True)
class Received:
    """The transfer of a round has ended: new weights are served, or (`error`) the old ones still are."""

    round: int
    loaded: Loaded | None
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Leave:
    """This process has to end: a signal came, or the engine died."""

    reason: str
    code: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """The time to find a learner in is over. `waited`: how long it was, for a message."""

    waited: str


Event = ControlRead | RequestRead | Published | RolloutEnded | Paused | Received | Leave | StartOver

# --- commands -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """Publish a status record."""

    record: Ack | Failed | Left


@dataclass(frozen=True, slots=True)
class SendReport:
    """Publish the report. `incarnation`: of the claim that it answers; None when joining."""

    incarnation: int | None


@dataclass(frozen=True, slots=True)
class ReadRequests:
    """Read this partition of `requests`, from where it ended before the report."""

    partition: int


@dataclass(frozen=True, slots=True)
class Start:
    """Roll out a request and publish its group."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Cancel a rollout; answered by `RolloutEnded` without a failure."""

    key: Key


@dataclass(frozen=True, slots=True)
class Pause:
    round: int
    drop_caches: bool


@dataclass(frozen=True, slots=True)
class Receive:
    round: int
    offer: TransferOffer


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True)
class Exit:
    """End this process, once every status record so far has been published."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    level: Literal["info", "warning", "error"] = "info"


Command = Say | SendReport | ReadRequests | Start | Abort | Pause | Receive | Resume | Exit | Note
