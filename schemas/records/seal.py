"""The seal: the learner's record that says which group of each slot is the batch of a target version.

The first well-formed seal in partition 0 of the version's topic is the batch, whoever wrote it. Everything that it does not name
is late. On the wire: msgpack, schema `weir.seal/1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from schemas.errors import RecordRefused
from schemas.records.group import unpack

SCHEMA = "weir.seal/1"


@dataclass(frozen=True, slots=True)
class SealedSlot:
    """Where the group of one slot lies, and what its bytes and its contents must hash to."""

    draw: int
    attempt: int
    partition: int
    offset: int
    sha256: str
    content_sha256: str


@dataclass(frozen=True, slots=True)
class Seal:
    """The batch of `version`. `run` is the run's uuid; `slots` has every slot 0..N-1, once."""

    run: str
    incarnation: int
    config_digest: str
    version: int
    slots: Mapping[int, SealedSlot]


def encode(seal: Seal) -> bytes:
    packed: bytes = msgpack.packb(
        {
            "schema": SCHEMA,
            "run": seal.run,
            "incarnation": seal.incarnation,
            "config_digest": seal.config_digest,
            "version": seal.version,
            "slots": [
                [slot, s.draw, s.attempt, s.partition, s.offset, bytes.fromhex(s.sha256), bytes.fromhex(s.content_sha256)]
                for slot, s in sorted(seal.slots.items())
            ],
        }
    )
    return packed


def decode(value: bytes, *, run: str, version: int, prompts_per_step: int) -> Seal:
    """Bytes to the seal of `version`.

    Raises:
        RecordRefused: anything that is not a well-formed seal of this run and version with each of the N slots once.
    """
    record = unpack(value, SCHEMA, longest=max(1 << 16, prompts_per_step))
    try:
        slots = {row[0]: _slot(row) for row in record["slots"]}
        seal = Seal(record["run"], record["incarnation"], record["config_digest"], record["version"], slots)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise RecordRefused("malformed", f"{type(error).__name__}: {error}") from error
    kinds = (type(seal.run), type(seal.incarnation), type(seal.config_digest), type(seal.version))
    if kinds != (str, int, str, int):
        shown = ", ".join(kind.__name__ for kind in kinds)
        raise RecordRefused("malformed", f"run, incarnation, config_digest, version are {shown}, expected str, int, str, int")
    if seal.run != run or seal.version != version:
        raise RecordRefused("run", f"seal of run {seal.run} version {seal.version}, expected {run} version {version}")
    if sorted(slots) != list(range(prompts_per_step)) or len(record["slots"]) != prompts_per_step:
        raise RecordRefused("slot", f"{len(record['slots'])} slots, expected each of {prompts_per_step} once")
    return seal


def _slot(row: list[Any]) -> SealedSlot:
    _, draw, attempt, partition, offset, sha, content = row
    if not all(type(n) is int and n >= 0 for n in row[:5]) or len(sha) != 32 or len(content) != 32:
        raise ValueError(f"slot entry {row[:5]!r}")
    return SealedSlot(draw, attempt, partition, offset, sha.hex(), content.hex())
