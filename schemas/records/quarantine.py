"""Records of the `quarantine` topic: where a refused record lies and why it was refused."""

from __future__ import annotations

import base64
from typing import Final, Literal, Self

from pydantic import Field

from schemas.records.json_record import JsonRecord

SCHEMA: Final = "weir.quarantine/1"
RAW_BYTES = 64 * 1024
KEY_CHARACTERS = 256  # a group's key has 40; a refused record may have any


class Quarantined(JsonRecord):
    """`raw` is base64 of the first 64 KiB of the value; the rest stays where it lies."""

    schema_: Literal["weir.quarantine/1"] = Field(SCHEMA, alias="schema")
    uuid: str
    topic: str
    partition: int
    offset: int
    key: str | None
    sha256: str
    reason: str
    detail: str
    raw: str

    @classmethod
    def of(
        cls,
        *,
        uuid: str,
        topic: str,
        partition: int,
        offset: int,
        key: str | None,
        sha256: str,
        reason: str,
        detail: str,
        value: bytes,
    ) -> Self:
        raw = base64.b64encode(value[:RAW_BYTES]).decode()
        return cls(
            uuid=uuid,
            topic=topic,
            partition=partition,
            offset=offset,
            key=None if key is None else key[:KEY_CHARACTERS],
            sha256=sha256,
            reason=reason,
            detail=detail,
            raw=raw,
        )
