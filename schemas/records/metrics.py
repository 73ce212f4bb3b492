"""Records of the `metrics` topic: one a trained step, what happened and what it must be compared with when done again."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from schemas.records.json_record import JsonRecord

SCHEMA: Final = "weir.metrics/1"


class StepMetrics(JsonRecord):
    """`step` is the version that was trained (its weights after the step are version step + 1).

    seal_offset: of the seal in partition 0 of the version's topic; weights_digest: of what is sent at a refit; state_digest: of
    fp32 main weights, moments, step and scheduler (None where it is not made at every step).
    """

    schema_: Literal["weir.metrics/1"] = Field(SCHEMA, alias="schema")
    uuid: str
    incarnation: int
    step: int
    seal_offset: int
    config_digest: str
    state_digest: str | None = None
    weights_digest: str | None = None
    metrics: dict[str, float]
