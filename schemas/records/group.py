"""A trajectory group: one prompt and its G finished trajectories, the unit of publishing and of consuming.

On the wire: msgpack, schema `weir.group/1`; numbers as little-endian blobs. A response is everything after the prompt. Its
`mask` is 1 on tokens that the engine generated and 0 on tokens that an environment added (tool output, next user turn);
`logprobs` are those of the distribution sampled from, 0 where the mask is 0; `spans` say which weights sampled which tokens.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import msgpack
import numpy as np

from schemas.errors import RecordRefused
from schemas.identity import Attempt
from schemas.records import blobs
from schemas.records.blobs import Array

SCHEMA = "weir.group/1"

MAX_DEPTH = 16
"""Maps and lists inside each other; a group needs 5. Python's own recursion fails near 1000."""

Kind = Literal["rollout", "validation"]


class FinishReason(StrEnum):
    """Why a trajectory ended. A failed one has no reason here: it is never published."""

    STOP = "stop"
    """The engine sampled an end token or a stop string."""
    LENGTH = "length"
    """`max_new_tokens` or the model's length was reached: truncated, but finished."""
    ENVIRONMENT = "environment"
    """The environment ended the episode."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) of the response were sampled with the weights of `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One finished response.

    tokens: uint32 [L]; mask: uint8 [L]; logprobs: float32 [L]; rewards: named components, float64, their sum is the reward;
    extras: named arrays that later parts add.
    """

    tokens: Array
    mask: Array
    logprobs: Array
    spans: tuple[Span, ...]
    finish: FinishReason
    rewards: Mapping[str, float]
    extras: Mapping[str, Array] = field(default_factory=dict)

    @property
    def reward(self) -> float:
        return float(sum(self.rewards.values()))

    @property
    def truncated(self) -> bool:
        return self.finish is FinishReason.LENGTH

    @property
    def oldest_version(self) -> int:
        return min(span.version for span in self.spans)

    @property
    def generated_tokens(self) -> int:
        return sum(span.end - span.start for span in self.spans)

    def token_versions(self) -> Array:
        """int64 [L]: the version that sampled each token, -1 where the environment wrote it."""
        versions = np.full(len(self.tokens), -1, dtype="<i8")
        for span in self.spans:
            versions[span.start : span.end] = span.version
        return versions


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryGroup:
    """What one request became. `prompt`: uint32 [P], shared by all trajectories."""

    run: str
    kind: Kind
    request: Attempt
    row: int
    incarnation: int
    min_version: int
    producer: str
    prompt: Array
    sampling: Mapping[str, Any]
    trajectories: tuple[Trajectory, ...]
    seconds: float
    """From the first token asked for to the last reward, on the producer's clock."""

    @property
    def oldest_version(self) -> int:
        return min(t.oldest_version for t in self.trajectories)

    @property
    def generated_tokens(self) -> int:
        return sum(t.generated_tokens for t in self.trajectories)


def prompt_sha256(prompt: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(prompt, dtype="<u4").tobytes()).hexdigest()


def content_sha256(group: TrajectoryGroup) -> str:
    """Digest of what training depends on: prompt, tokens, mask, log-probabilities and rewards; not of who, when or how often."""
    digest = hashlib.sha256(np.ascontiguousarray(group.prompt, dtype="<u4").data)
    for t in group.trajectories:
        digest.update(np.ascontiguousarray(t.tokens, dtype="<u4").data)
        digest.update(np.ascontiguousarray(t.mask, dtype="|u1").data)
        digest.update(np.ascontiguousarray(t.logprobs, dtype="<f4").data)
        for name in sorted(t.rewards):
            digest.update(name.encode() + struct.pack("<d", t.rewards[name]))
    return digest.hexdigest()


def encode(group: TrajectoryGroup) -> bytes:
    packed: bytes = msgpack.packb(
        {
            "schema": SCHEMA,
            "run": group.run,
            "kind": group.kind,
            "version": group.request.version,
            "slot": group.request.slot,
            "draw": group.request.draw,
            "attempt": group.request.attempt,
            "row": group.row,
            "incarnation": group.incarnation,
            "min_version": group.min_version,
            "producer": group.producer,
            "prompt": blobs.encode(group.prompt),
            "prompt_sha256": prompt_sha256(group.prompt),
            "sampling": dict(group.sampling),
            "seconds": float(group.seconds),
            "trajectories": [_trajectory_record(t) for t in group.trajectories],
        }
    )
    return packed


def _trajectory_record(t: Trajectory) -> dict[str, Any]:
    return {
        "tokens": blobs.encode(t.tokens),
        "mask": blobs.encode(t.mask),
        "logprobs": blobs.encode(t.logprobs),
        "spans": [[s.version, s.start, s.end] for s in t.spans],
        "finish": str(t.finish),
        "rewards": {name: float(value) for name, value in t.rewards.items()},
        "extras": {name: blobs.encode(array) for name, array in t.extras.items()},
    }


def decode(value: bytes) -> TrajectoryGroup:
    """Bytes to a group. Checks form only; `schemas.records.validity` checks what the run expects.

    Raises:
        RecordRefused: whatever else the bytes are.
    """
    record = unpack(value, SCHEMA)
    try:
        _check_depth(record["sampling"])
        if record["kind"] not in ("rollout", "validation"):
            raise RecordRefused("malformed", f"kind {record['kind']!r} is neither rollout nor validation")
        prompt = blobs.decode(record["prompt"], "<u4", "prompt")
        if record["prompt_sha256"] != prompt_sha256(prompt):
            raise RecordRefused("digest", "prompt_sha256 is not that of the prompt")
        return TrajectoryGroup(
            run=_typed(record, "run", str),
            kind=record["kind"],
            request=Attempt(*(_count(record, name) for name in ("version", "slot", "draw", "attempt"))),
            row=_count(record, "row"),
            incarnation=_count(record, "incarnation"),
            min_version=_count(record, "min_version"),
            producer=_typed(record, "producer", str),
            prompt=prompt,
            sampling=_typed(record, "sampling", dict),
            trajectories=tuple(_trajectory(t) for t in _typed(record, "trajectories", list)),
            seconds=_typed(record, "seconds", float),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RecordRefused("malformed", f"{type(error).__name__}: {error}") from error


def _trajectory(record: dict[str, Any]) -> Trajectory:
    rewards = _typed(record, "rewards", dict)
    extras = _typed(record, "extras", dict)
    if not all(type(name) is str for name in (*rewards, *extras)) or not all(type(v) is float for v in rewards.values()):
        raise RecordRefused("malformed", f"rewards {rewards!r}, extras {list(extras)!r}: names are text, rewards are floats")
    return Trajectory(
        tokens=blobs.decode(record["tokens"], "<u4", "tokens"),
        mask=blobs.decode(record["mask"], "|u1", "mask"),
        logprobs=blobs.decode(record["logprobs"], "<f4", "logprobs"),
        spans=tuple(_span(span) for span in _typed(record, "spans", list)),
        finish=FinishReason(record["finish"]),
        rewards=rewards,
        extras={name: blobs.decode(blob, None, name) for name, blob in extras.items()},
    )


def _span(record: list[int]) -> Span:
    if len(record) != 3 or not all(type(n) is int and n >= 0 for n in record):
        raise RecordRefused("malformed", f"span {record!r} is not [version, start, end]")
    return Span(*record)


def _typed(record: Mapping[str, Any], name: str, kind: type) -> Any:
    value = record[name]
    if type(value) is not kind:
        raise RecordRefused("malformed", f"{name} is {type(value).__name__}, expected {kind.__name__}")
    return value


def _count(record: Mapping[str, Any], name: str) -> int:
    value: int = _typed(record, name, int)
    if value < 0:
        raise RecordRefused("malformed", f"{name} is {value}")
    return value


def unpack(value: bytes, schema: str, longest: int = 1 << 16) -> dict[str, Any]:
    """A msgpack map of the given schema, with lists of at most `longest`; any other bytes raise `RecordRefused`."""
    try:
        # Arrays hold trajectories, spans and shapes only, since numbers travel as blobs: small bounds stop inflation.
        record = msgpack.unpackb(value, raw=False, strict_map_key=True, max_array_len=longest, max_map_len=1 << 16, max_ext_len=0)
    except Exception as error:
        # msgpack raises a dozen unrelated types on hostile input; whichever it is, the record is refused with it.
        raise RecordRefused("malformed", f"not msgpack ({type(error).__name__}: {error})") from error
    if not isinstance(record, dict):
        raise RecordRefused("malformed", f"a {type(record).__name__}, not a map")
    if record.get("schema") != schema:
        _check_depth(record)
        raise RecordRefused("schema", f"schema {record.get('schema')!r}, this process reads {schema}")
    return record


def _check_depth(value: Any) -> None:
    """Of what is passed on as it is: everything else in a record is checked to be of its type."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise RecordRefused("malformed", f"nested deeper than {MAX_DEPTH}")
