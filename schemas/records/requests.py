"""Records of the `requests` topic: what one producer is asked to do. Ids and sampling parameters, never the prompt."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from schemas.identity import Attempt
from schemas.records.json_record import JsonRecord

SCHEMA: Final = "weir.request/1"


class SamplingParameters(JsonRecord):
    """All sampling parameters of a request, so that a producer's own config cannot change what is sampled."""

    n: int
    max_new_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None


class Request(JsonRecord):
    """`rollout` and `validation` ask for a group; `cancel` takes back the request of the same (target, slot, draw, attempt).

    min_version: the request is started only when the engine's version is at least this; for a rollout `target` minus the
    age bound, for a validation `target`.
    """

    schema_: Literal["weir.request/1"] = Field(SCHEMA, alias="schema")
    uuid: str
    kind: Literal["rollout", "validation", "cancel"]
    producer: str
    incarnation: int
    target: int = Field(alias="T")
    slot: int
    draw: int
    attempt: int
    row: int
    min_version: int
    sampling: SamplingParameters | None = None
    cancels: Literal["rollout", "validation"] | None = None

    @property
    def key(self) -> Attempt:
        return Attempt(self.target, self.slot, self.draw, self.attempt)
