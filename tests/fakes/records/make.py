"""Builders of one of every record, with plain values that a test changes where it cares."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from schemas.identity import Attempt
from schemas.records.control import Claim, DatasetFacts, Member, State
from schemas.records.requests import Request, SamplingParameters
from schemas.records.status import Ack, Failed, FailureKind, Heartbeat, InHand, Left, Operator, ProducerState, Report

UUID = "0123456789abcdef0123456789abcdef"
PLAN_DIGEST = "plan"
DIGESTS = {"model": "m", "tokenizer": "t"}


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def key(version: int = 0, slot: int = 0, draw: int = 0, attempt: int = 0) -> Attempt:
    return Attempt(version, slot, draw, attempt)


def in_hand(at: Attempt, kind: str = "rollout", tokens: int = 0) -> InHand:
    return InHand(kind=kind, target=at.version, slot=at.slot, draw=at.draw, attempt=at.attempt, tokens=tokens)


def make_dataset(rows: int | None = 64, validation_rows: int | None = None) -> DatasetFacts:
    return DatasetFacts(rows=rows, digest="data", validation_rows=validation_rows)


def make_report(producer: str = "p0", **changes: Any) -> Report:
    values: dict[str, Any] = {
        "uuid": UUID,
        "producer": producer,
        "host": "host",
        "pid": 7,
        "engine_world_size": 1,
        "state": ProducerState.JOINING,
        "capacity": 4,
        "plan_digest": PLAN_DIGEST,
        "dataset": make_dataset(),
        "agreed": {"grpo.num_prompts_per_step": 2},
        "digests": {**DIGESTS, "environment": "e"},
    }
    return Report(**{**values, **changes})


def make_heartbeat(producer: str = "p0", held: int = 0, work: Sequence[InHand] = (), **changes: Any) -> Heartbeat:
    values: dict[str, Any] = {
        "uuid": UUID,
        "producer": producer,
        "state": ProducerState.SERVING,
        "held": held,
        "in_hand": list(work),
        "engine_tokens": 0,
        "capacity": 4,
    }
    return Heartbeat(**{**values, **changes})


def make_ack(producer: str = "p0", phase: str = "pause", round: int = 1, **changes: Any) -> Ack:
    values: dict[str, Any] = {
        "uuid": UUID,
        "producer": producer,
        "incarnation": 0,
        "round": round,
        "phase": phase,
        "version": 0,
        "digest": "w0" if phase == "loaded" else None,
    }
    return Ack(**{**values, **changes})


def make_failed(producer: str, at: Attempt, failure: FailureKind, kind: str = "rollout", reason: str = "because") -> Failed:
    return Failed(uuid=UUID, producer=producer, request=in_hand(at, kind), failure=failure, reason=reason)


def make_left(producer: str = "p0", unfinished: Sequence[InHand] = ()) -> Left:
    return Left(uuid=UUID, producer=producer, reason="SIGTERM", unfinished=list(unfinished))


def make_operator(action: str = "stop", producer: str | None = None) -> Operator:
    return Operator(uuid=UUID, action=action, producer=producer, by="somebody")


def make_claim(**changes: Any) -> Claim:
    return Claim(**{"uuid": UUID, "host": "host", "pid": 9, "config_digest": "config", **changes})


def make_state(*members: str, incarnation: int = 0, **changes: Any) -> State:
    values: dict[str, Any] = {
        "uuid": UUID,
        "incarnation": incarnation,
        "config_digest": "config",
        "members": {name: Member(requests_partition=index) for index, name in enumerate(members)},
    }
    return State(**{**values, **changes})


def make_sampling(n: int = 2) -> SamplingParameters:
    return SamplingParameters(n=n, max_new_tokens=5, temperature=1.0)


def make_request(producer: str = "p0", at: Attempt | None = None, kind: str = "rollout", **changes: Any) -> Request:
    at = at or key()
    values: dict[str, Any] = {
        "uuid": UUID,
        "kind": kind,
        "producer": producer,
        "incarnation": 0,
        "T": at.version,
        "slot": at.slot,
        "draw": at.draw,
        "attempt": at.attempt,
        "row": 0,
        "min_version": max(0, at.version - 1),
        "sampling": None if kind == "cancel" else make_sampling(),
    }
    return Request(**{**values, **changes})
