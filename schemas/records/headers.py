"""Record headers: everything a person needs, readable by stock Kafka tools that know nothing of msgpack.

Order is fixed and `gist` comes first, so `kafka-console-consumer` with headers and keys and without values is a useful view.
All header values are ASCII; the gist is one line of compact JSON of at most `GIST_BYTES`, which its fields cannot exceed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas.records.group import SCHEMA as GROUP_SCHEMA
from schemas.records.group import TrajectoryGroup, content_sha256
from schemas.records.seal import SCHEMA as SEAL_SCHEMA
from schemas.records.seal import Seal

GIST_BYTES = 1024
_LISTED = 16  # longer lists are shown as [min, mean, max]
_WHOLE = 1e15  # numbers from here on are shown with an exponent: written out, one of them may have 309 digits

Headers = list[tuple[str, bytes]]


def as_mapping(headers: Iterable[tuple[str, bytes | None]] | None) -> dict[str, bytes]:
    """First value of each header; librdkafka hands over None for a record without headers."""
    found: dict[str, bytes] = {}
    for name, value in headers or ():
        found.setdefault(name, value or b"")
    return found


def of_group(group: TrajectoryGroup, value: bytes) -> Headers:
    return [
        ("gist", _line(group_gist(group))),
        ("kind", group.kind.encode()),
        ("schema", GROUP_SCHEMA.encode()),
        ("run", group.run.encode()),
        ("sha256", hashlib.sha256(value).hexdigest().encode()),
        ("content_sha256", content_sha256(group).encode()),
        ("producer", group.producer.encode()),
    ]


def of_seal(seal: Seal, value: bytes) -> Headers:
    return [
        ("gist", _line(seal_gist(seal))),
        ("kind", b"seal"),
        ("schema", SEAL_SCHEMA.encode()),
        ("run", seal.run.encode()),
        ("sha256", hashlib.sha256(value).hexdigest().encode()),
    ]


def group_gist(group: TrajectoryGroup) -> dict[str, Any]:
    """`reward` mean, `rewards`, `len` of the responses, `finish` counts, `versions` oldest and newest, `row`."""
    rewards = [t.reward for t in group.trajectories]
    versions = [span.version for t in group.trajectories for span in t.spans]
    return {
        "reward": _short(sum(rewards) / max(len(rewards), 1)),
        "rewards": _listed(rewards),
        "len": _listed([len(t.tokens) for t in group.trajectories]),
        "finish": dict(Counter(str(t.finish) for t in group.trajectories)),
        "versions": [min(versions), max(versions)] if versions else [],
        "row": group.row,
    }


def seal_gist(seal: Seal) -> dict[str, Any]:
    """`slots` sealed, how many are of a later `draw` or `attempt`, the `incarnation` that wrote it."""
    entries = list(seal.slots.values())
    return {
        "slots": len(entries),
        "later_draws": sum(entry.draw > 0 for entry in entries),
        "later_attempts": sum(entry.attempt > 0 for entry in entries),
        "incarnation": seal.incarnation,
    }


def _short(value: float) -> float | int:
    if not abs(value) < _WHOLE:
        return float(value)
    rounded = round(float(value), 4)
    return int(rounded) if rounded.is_integer() else rounded


def _listed(values: Sequence[float]) -> list[float | int]:
    if len(values) > _LISTED:
        return [_short(min(values)), _short(sum(values) / len(values)), _short(max(values))]
    return [_short(value) for value in values]


def _line(gist: Mapping[str, Any]) -> bytes:
    return json.dumps(_finite(gist), separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def _finite(value: Any) -> Any:
    """The same with numbers that are not finite as text: JSON has none, and a group of such rewards must still show why."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
