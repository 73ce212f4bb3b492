"""Names of things: slots, groups and seals as record keys, producers, run uuids."""

from __future__ import annotations

import re
import secrets
import uuid
from dataclasses import dataclass

from schemas.errors import RecordRefused

LATEST = "latest"
"""Names the newest run: `runs/latest` is a link to its folder. No run has this id."""

_KEY = re.compile(r"v(\d{8})/s(\d{4,9})/d(\d{1,9})/a(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One try at one prompt for one slot: (target version, slot, draw, attempt). Its text form is the record's key."""

    version: int
    slot: int
    draw: int
    attempt: int

    def __str__(self) -> str:
        return f"v{self.version:08d}/s{self.slot:04d}/d{self.draw}/a{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Attempt:
        match = _KEY.fullmatch(text)
        if match is None:
            raise RecordRefused("malformed", f"key {text!r} is not of the form v00000012/s0031/d0/a0")
        return cls(*(int(part) for part in match.groups()))


def seal_key(version: int) -> str:
    return f"v{version:08d}/seal"


def new_producer(name: str) -> str:
    """A producer's identity, new at each start: a record of an earlier start can never be taken for one of this start."""
    return f"{name}-{secrets.token_hex(4)}"


def new_uuid() -> str:
    return uuid.uuid4().hex
