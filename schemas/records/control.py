"""Records of the `control` topic: claims and states, written by the learner alone.

A *claim* takes the run over; its offset is the learner's incarnation. Every *state* is whole: the last one is what holds, and
nobody needs an older one. A record whose incarnation is below an earlier claim's offset does not exist.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from schemas.errors import RecordRefused
from schemas.records.json_record import JsonRecord, explain

SCHEMA: Final = "weir.control/1"


class DatasetFacts(JsonRecord):
    """Size and digest of a data set; rows is None for a generator without end."""

    rows: int | None
    digest: str
    validation_rows: int | None = None


class Member(JsonRecord):
    """A producer that the learner knows: where it reads requests, and which weights it last acknowledged."""

    requests_partition: int
    held: int = -1
    digest: str | None = None
    draining: bool = False
    """An operator wants it to leave: it gets no new work."""
    dismissed: bool = False
    """It is draining and has nothing in hand any more, nor on its way to it: it leaves."""


class TransferGroup(JsonRecord):
    """One rendezvous: where the sender listens, the group's ranks, and the rank of each member's first worker."""

    host: str
    port: int
    prefix: str
    nccl_id: str | None = None
    world: int
    members: dict[str, int]


class Round(JsonRecord):
    """One try of giving `version` to its members. `groups` are filled in the `transfer` phase; in `pause`, `members` only."""

    number: int
    version: int
    mode: Literal["keep", "drain"]
    phase: Literal["pause", "transfer"]
    members: list[str]
    groups: list[TransferGroup] = Field(default_factory=list)


class Stop(JsonRecord):
    """The end of the run under this incarnation."""

    reason: str
    version: int = Field(alias="v")
    resumable: bool
    finished: bool = False
    """True when all steps were trained."""
    ordered: bool = False
    """True when a person, or the system, asked for it: nothing failed."""


class Claim(JsonRecord):
    schema_: Literal["weir.control/1"] = Field(SCHEMA, alias="schema")
    kind: Literal["claim"] = "claim"
    uuid: str
    host: str
    pid: int
    config_digest: str


class State(JsonRecord):
    """All that holds, from `incarnation` (the offset of its claim) on.

    frontier: the highest version ever announced (None before the first refit); window: open target versions and the id of
    each one's topic; validations: likewise for validation topics; sealed_through: requests with a target up to it are void (-1:
    none).
    """

    schema_: Literal["weir.control/1"] = Field(SCHEMA, alias="schema")
    kind: Literal["state"] = "state"
    uuid: str
    incarnation: int
    config_digest: str
    frontier: int | None = Field(None, alias="F")
    weights_digest: str | None = None
    sealed_through: int = -1
    last_version: int | None = None
    """Versions that the run will train; None until the data set's size is known."""
    window: dict[int, str] = Field(default_factory=dict)
    validations: dict[int, str] = Field(default_factory=dict)
    dataset: DatasetFacts | None = None
    members: dict[str, Member] = Field(default_factory=dict)
    refused: dict[str, list[str]] = Field(default_factory=dict)
    round: Round | None = None
    stop: Stop | None = None


ControlRecord = Annotated[Claim | State, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Claim | State] = TypeAdapter(ControlRecord)


def decode(value: bytes) -> Claim | State:
    """
    Raises:
        RecordRefused: any bytes that are neither a claim nor a state of this schema.
    """
    try:
        return _ADAPTER.validate_json(value)
    except ValidationError as error:
        raise RecordRefused(*explain(error)) from error
