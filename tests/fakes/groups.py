"""Builders of trajectories and groups, valid for a small run (`RULES`) until a test changes something."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas.draws import row_of
from schemas.identity import Attempt
from schemas.records import group as groups
from schemas.records.group import FinishReason, Span, Trajectory, TrajectoryGroup
from schemas.records.validity import Rules
from tests.fakes.records import UUID

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


def make_trajectory(version: int = 12, **changes: Any) -> Trajectory:
    """Four generated tokens, then two of the environment, then one generated token."""
    values: dict[str, Any] = {
        "tokens": np.array([7, 8, 9, 2, 50, 51, 3], dtype="<u4"),
        "mask": np.array([1, 1, 1, 1, 0, 0, 1], dtype="|u1"),
        "logprobs": np.array([-0.5, -1.5, -0.25, -2.0, 0, 0, -0.125], dtype="<f4"),
        "spans": (Span(version - 1, 0, 2), Span(version, 2, 4), Span(version, 6, 7)),
        "finish": FinishReason.STOP,
        "rewards": {"correct": 1.0, "format": 0.25},
    }
    return Trajectory(**{**values, **changes})


def make_group(
    version: int = 12, slot: int = 3, draw: int = 0, attempt: int = 0, kind: str = "rollout", **changes: Any
) -> TrajectoryGroup:
    """A group that `RULES` accept for `version`. `trajectories=` and every other field may be changed."""
    validation = kind == "validation"
    first = make_trajectory(version, spans=(Span(version, 0, 4), Span(version, 6, 7))) if validation else make_trajectory(version)
    values: dict[str, Any] = {
        "run": UUID,
        "kind": kind,
        "request": Attempt(version, slot, draw, attempt),
        "row": slot if validation else row_of(RULES.seed, RULES.rows, RULES.prompts_per_step, version, slot, draw),
        "incarnation": 4,
        "min_version": max(0, version - RULES.max_age),
        "producer": "producer-0-abcd1234",
        "prompt": np.array([1, 5, 6], dtype="<u4"),
        "sampling": {"n": 2, "temperature": 1.0, "max_new_tokens": 8},
        "trajectories": (first,) if validation else (first, first),
        "seconds": 0.25,
    }
    return TrajectoryGroup(**{**values, **changes})


def encoded(group: TrajectoryGroup) -> tuple[bytes, dict[str, bytes]]:
    """The record's value and its headers but for the gist, which groups that are not fit may not have."""
    value = groups.encode(group)
    return value, {
        "kind": group.kind.encode(),
        "sha256": hashlib.sha256(value).hexdigest().encode(),
        "content_sha256": groups.content_sha256(group).encode(),
        "producer": group.producer.encode(),
    }


def with_trajectory(version: int = 12, others: Sequence[Trajectory] = (), **changes: Any) -> TrajectoryGroup:
    """A group whose second trajectory is changed."""
    return make_group(version, trajectories=(make_trajectory(version), make_trajectory(version, **changes), *others))
