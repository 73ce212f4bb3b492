"""The one builder of trajectories and groups: valid for a small run (`RULES`) until a test changes something."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from schemas.draws import row_of
from schemas.identity import Attempt
from schemas.records import group as groups
from schemas.records.blobs import Array
from schemas.records.group import FinishReason, Span, Trajectory, TrajectoryGroup
from schemas.records.validity import Rules
from tests.fakes.records.make import UUID

RULES = Rules(
    run=UUID,
    seed=3,
    rows=64,
    validation_rows=8,
    prompts_per_step=4,
    generations_per_prompt=2,
    max_age=2,
    vocab_size=100,
    max_total_length=32,
    max_record_bytes=1 << 20,
)


def make_trajectory(
    version: int = 12,
    *,
    tokens: Any = (7, 8, 2),
    mask: Any = None,
    logprobs: Any = None,
    spans: Sequence[Span] | None = None,
    rewards: float | Mapping[str, float] = 1.0,
    finish: FinishReason = FinishReason.STOP,
    extras: Mapping[str, Array] | None = None,
) -> Trajectory:
    """Every trajectory of the tests. By default as most are in a run: all tokens generated, by one version's weights.

    Numbers become arrays; an array stays as it is, fit or not. rewards: one number is the component `reward`.
    """
    tokens = _array(tokens, "<u4")
    return Trajectory(
        tokens=tokens,
        mask=np.ones(tokens.size, dtype="|u1") if mask is None else _array(mask, "|u1"),
        logprobs=np.full(tokens.size, -0.5, dtype="<f4") if logprobs is None else _array(logprobs, "<f4"),
        spans=(Span(version, 0, tokens.size),) if spans is None else tuple(spans),
        finish=finish,
        rewards=dict(rewards) if isinstance(rewards, Mapping) else {"reward": rewards},
        extras=dict(extras or {}),
    )


def make_multi_turn(version: int = 12, **changes: Any) -> Trajectory:
    """Four generated tokens, with new weights after two of them; then two of the environment and one generated token."""
    values: dict[str, Any] = {
        "tokens": (7, 8, 9, 2, 50, 51, 3),
        "mask": (1, 1, 1, 1, 0, 0, 1),
        "logprobs": (-0.5, -1.5, -0.25, -2.0, 0, 0, -0.125),
        "spans": (Span(version - 1, 0, 2), Span(version, 2, 4), Span(version, 6, 7)),
        "rewards": {"correct": 1.0, "format": 0.25},
    }
    return make_trajectory(version, **{**values, **changes})


def _array(values: Any, dtype: str) -> Array:
    return values if isinstance(values, np.ndarray) else np.array(values, dtype=dtype)


def make_group(
    version: int = 12,
    slot: int = 3,
    draw: int = 0,
    attempt: int = 0,
    kind: str = "rollout",
    rewards: Sequence[float] = (1.0, 0.0),
    **changes: Any,
) -> TrajectoryGroup:
    """A group that `RULES` accept for `version`, one trajectory for each reward; validation takes the first alone. Every field
    may be changed, `trajectories` too."""
    validation = kind == "validation"
    if "trajectories" not in changes:
        members = rewards[:1] if validation else rewards
        changes["trajectories"] = tuple(make_trajectory(version, rewards=reward) for reward in members)
    values: dict[str, Any] = {
        "run": UUID,
        "kind": kind,
        "request": Attempt(version, slot, draw, attempt),
        "row": slot if validation else row_of(RULES.seed, RULES.rows, RULES.prompts_per_step, version, slot, draw),
        "incarnation": 4,
        "min_version": max(0, version - RULES.max_age),
        "producer": "producer-0-abcd1234",
        "prompt": (1, 5, 6),
        "sampling": {"n": 2, "temperature": 1.0, "max_new_tokens": 8},
        "seconds": 0.25,
        **changes,
    }
    return TrajectoryGroup(**{**values, "prompt": _array(values["prompt"], "<u4")})


def encoded(group: TrajectoryGroup) -> tuple[bytes, dict[str, bytes]]:
    """The record's value and its headers but for the gist, which groups that are not fit may not have."""
    value = groups.encode(group)
    return value, {
        "kind": group.kind.encode(),
        "sha256": hashlib.sha256(value).hexdigest().encode(),
        "content_sha256": groups.content_sha256(group).encode(),
        "producer": group.producer.encode(),
    }


def with_trajectory(second: Trajectory, version: int = 12) -> TrajectoryGroup:
    """A group whose first trajectory is fit, and whose second is this one."""
    return make_group(version, trajectories=(make_trajectory(version), second))
