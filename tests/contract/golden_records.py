"""One of every record with fixed contents, and the bytes that it has been on the wire since its schema's number was given.

    python -m tests.contract.golden_records --write

makes the files again: only together with a new schema number, or for a key that was added.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from schemas.records import control, group, seal, status
from schemas.records.control import Claim, DatasetFacts, Member, Round, State, Stop, TransferGroup
from schemas.records.group import FinishReason, Span, TrajectoryGroup
from schemas.records.json_record import JsonRecord
from schemas.records.metrics import StepMetrics
from schemas.records.quarantine import Quarantined
from schemas.records.requests import Request, SamplingParameters
from schemas.records.seal import Seal, SealedSlot
from schemas.records.status import Ack, Beat, Failed, FailureKind, Heartbeat, InHand, Left, Operator, ProducerState, Report
from tests.fakes.records.groups import make_group, make_trajectory

FOLDER = Path(__file__).parent / "golden" / "records"
UUID = "c23d3ade542340d6b123dc873cf5537a"
PRODUCER = "producer-0-4e232133"


@dataclass(frozen=True)
class Golden:
    """A record, its bytes now, and how they are read."""

    record: Any
    value: bytes
    decode: Callable[[bytes], Any]
    suffix: str


def _json(record: JsonRecord, decode: Callable[[bytes], Any]) -> Golden:
    return Golden(record, record.to_bytes(), decode, "json")


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.{GOLDEN[name].suffix}"


def _make_group() -> TrajectoryGroup:
    """Two trajectories: one that a refit interrupted and an environment spoke in, one truncated, with an extra array."""
    first = make_trajectory(
        tokens=[7, 8, 50, 2],
        mask=[1, 1, 0, 1],
        logprobs=[-0.5, -0.25, 0.0, -1.5],
        spans=(Span(11, 0, 1), Span(12, 1, 2), Span(12, 3, 4)),
        rewards={"correct": 1.0, "format": -0.1},
    )
    second = make_trajectory(
        tokens=[9, 4_000_000_000],
        logprobs=[-0.125, -8.0],
        finish=FinishReason.LENGTH,
        rewards={"correct": 0.0, "format": 0.0},
        extras={"routed_experts": np.array([[1, -2], [3, 4]], dtype="<i8")},
    )
    return make_group(
        12,
        3,
        draw=1,
        attempt=2,
        run=UUID,
        row=195,
        incarnation=4,
        min_version=11,
        producer=PRODUCER,
        prompt=[1, 5, 6],
        sampling={"n": 2, "temperature": 1.0, "max_new_tokens": 8, "top_p": 0.9, "top_k": None, "stop": ["\n"]},
        trajectories=(first, second),
        seconds=0.25,
    )


def _make_seal() -> Seal:
    shas = [f"{n:02x}" * 32 for n in range(4)]
    return Seal(
        UUID, 4, "c0ffee", 12, {0: SealedSlot(0, 0, 0, 7, shas[0], shas[1]), 1: SealedSlot(1, 2, 1, 300, shas[2], shas[3])}
    )


def _make_state() -> State:
    transfer = TransferGroup(host="10.0.0.1", port=29500, prefix="r3", nccl_id=None, world=3, members={PRODUCER: 1, "p1": 2})
    return State(
        uuid=UUID,
        incarnation=4,
        config_digest="c0ffee",
        frontier=12,
        weights_digest="0011223344556677",
        sealed_through=11,
        last_version=40,
        window={12: "id12", 13: "id13"},
        validations={12: "val12"},
        dataset=_dataset(),
        members={PRODUCER: Member(requests_partition=2, held=12, digest="0011223344556677"), "p1": Member(requests_partition=3)},
        refused={"p9": ["model: c0ffee here, decaf there"]},
        round=Round(number=3, version=12, mode="keep", phase="transfer", members=[PRODUCER, "p1"], groups=[transfer]),
        stop=Stop(reason="weir stop by somebody", version=12, resumable=True),
    )


def _dataset() -> DatasetFacts:
    return DatasetFacts(rows=1000, digest="d1", validation_rows=100)


def _make_report() -> Report:
    return Report(
        uuid=UUID,
        producer=PRODUCER,
        host="node-1",
        pid=77,
        incarnation=4,
        requests_partition=2,
        engine_world_size=1,
        held=12,
        digest="0011223344556677",
        state=ProducerState.SERVING,
        in_hand=[_in_hand()],
        capacity=8,
        plan_digest="p1",
        dataset=_dataset(),
        agreed={"grpo.num_prompts_per_step": 16, "generation.stop": ["\n"], "generation.temperature": 1.0, "data.subset": None},
        digests={"model": "m1", "tokenizer": "t1", "environment": "e1"},
    )


def _in_hand() -> InHand:
    return InHand(kind="rollout", target=12, slot=3, draw=1, attempt=2, tokens=40)


def _make_request(kind: Any = "rollout", **changes: Any) -> Request:
    sampling = SamplingParameters(n=16, max_new_tokens=8, temperature=1.0, top_p=0.9, stop=["\n"], stop_token_ids=[2])
    values: dict[str, Any] = {"producer": PRODUCER, "incarnation": 4, "T": 12, "slot": 3, "draw": 1, "attempt": 2}
    values |= {"row": 195, "min_version": 11, "sampling": sampling, **changes}
    return Request(uuid=UUID, kind=kind, **values)


def _decode_seal(value: bytes) -> Seal:
    return seal.decode(value, run=UUID, version=12, prompts_per_step=2)


GOLDEN: Mapping[str, Golden] = {
    "group": Golden(_make_group(), group.encode(_make_group()), group.decode, "msgpack"),
    "seal": Golden(_make_seal(), seal.encode(_make_seal()), _decode_seal, "msgpack"),
    "claim": _json(Claim(uuid=UUID, host="node-0", pid=9, config_digest="c0ffee"), control.decode),
    "state": _json(_make_state(), control.decode),
    "request": _json(_make_request(), Request.from_bytes),
    "cancel": _json(_make_request("cancel", sampling=None, cancels="rollout"), Request.from_bytes),
    "report": _json(_make_report(), status.decode),
    "heartbeat": _json(
        Heartbeat(
            uuid=UUID,
            producer=PRODUCER,
            state=ProducerState.PAUSED,
            held=12,
            digest="0011223344556677",
            in_hand=[_in_hand()],
            engine_tokens=123456789,
            capacity=8,
        ),
        status.decode,
    ),
    "ack": _json(
        Ack(
            uuid=UUID,
            producer=PRODUCER,
            incarnation=4,
            round=3,
            phase="loaded",
            version=12,
            digest="0011223344556677",
            probe_gap=0.001,
            seconds=1.5,
        ),
        status.decode,
    ),
    "failed": _json(
        Failed(uuid=UUID, producer=PRODUCER, request=_in_hand(), failure=FailureKind.ROLLOUT, reason="TimeoutError: é"),
        status.decode,
    ),
    "left": _json(Left(uuid=UUID, producer=PRODUCER, reason="SIGTERM", unfinished=[_in_hand()]), status.decode),
    "beat": _json(Beat(uuid=UUID, incarnation=4, number=1234), status.decode),
    "operator": _json(Operator(uuid=UUID, action="drain", producer=PRODUCER, by="somebody@node-0"), status.decode),
    "step_metrics": _json(
        StepMetrics(
            uuid=UUID,
            incarnation=4,
            step=12,
            seal_offset=16,
            config_digest="c0ffee",
            state_digest="s1",
            weights_digest="0011223344556677",
            metrics={"train/reward": 0.625, "train/loss": -1e-9, "train/grad_norm": float("inf")},
        ),
        StepMetrics.from_bytes,
    ),
    "quarantined": _json(
        Quarantined.of(
            uuid=UUID,
            topic="tiny-20260101-120000.trajectories.v00000012",
            partition=0,
            offset=9,
            key="v00000012/s0003/d1/a2",
            sha256="00" * 32,
            reason="age",
            detail="trajectory 1: tokens of version 9, allowed 11 to 12",
            value=b"\x00\xffraw",
        ),
        Quarantined.from_bytes,
    ),
}


def write() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, golden in GOLDEN.items():
        path_of(name).write_bytes(golden.value)
        print(path_of(name).name)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
