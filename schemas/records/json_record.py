"""Common form of the JSON records: frozen, versioned, read strictly, written compactly.

Additive changes keep a schema's number; readers ignore keys they do not know. Anything else is a new number, which old readers
refuse by name.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.errors import RecordRefused


class JsonRecord(BaseModel):
    """A record whose value is JSON. Subclasses fix `schema_` to their schema's name."""

    # Numbers that are not finite are written as text, which is JSON and reads back as the same number.
    model_config = ConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, protected_namespaces=(), ser_json_inf_nan="strings"
    )

    def to_bytes(self) -> bytes:
        return self.model_dump_json(by_alias=True, exclude_none=False).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """
        Raises:
            RecordRefused: any bytes that are not this record.
        """
        try:
            return cls.model_validate_json(value)
        except ValidationError as error:
            raise RecordRefused(*explain(error)) from error


def explain(error: ValidationError) -> tuple[str, str]:
    """(reason, detail) of a validation error: `schema` when the record is of another schema, else `malformed`."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    reason = "schema" if where.endswith("schema") or first["type"] == "union_tag_invalid" else "malformed"
    return reason, f"{where}: {first['msg']}"
