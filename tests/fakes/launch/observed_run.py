"""A run as a view sees it: records that go through the decoders of their topics, with plain values."""

from __future__ import annotations

from typing import Any

from broker_config.topics import Topics
from launch.observe.run_view import RunSnapshot, RunView
from launch.observe.watch import feed
from schemas.records.control import Claim, DatasetFacts, State
from schemas.records.json_record import JsonRecord
from schemas.records.metrics import StepMetrics
from schemas.records.status import Beat, Heartbeat, InHand, OpenVersion, ProducerState, Report
from tests.fakes.records.make import UUID
from tests.fakes.records.runs import RUN

START = 1000.0
PRODUCER = "producer-0-abcd1234"
TOPICS = Topics(RUN)


class ObservedRun:
    """A view fed through the topics' own decoders."""

    def __init__(self) -> None:
        self.view = RunView(RUN, START)

    def put(self, topic: str, record: JsonRecord, at: float = START, offset: int = 0) -> None:
        feed(self.view, TOPICS, f"{RUN}.{topic}", record.to_bytes(), at, offset)

    def at(self, seconds: float) -> RunSnapshot:
        return self.view.snapshot(START + seconds)


def claim() -> Claim:
    return Claim(uuid=UUID, host="here", pid=1, config_digest="c0")


def state(**values: object) -> State:
    return State.model_validate({"uuid": UUID, "incarnation": 0, "config_digest": "c0", "last_version": 40, **values})


def heartbeat(tokens: int, state: ProducerState = ProducerState.SERVING, in_hand: int = 2) -> Heartbeat:
    hand = [InHand(kind="rollout", target=1, slot=slot, draw=0, attempt=0) for slot in range(in_hand)]
    return Heartbeat(uuid=UUID, producer=PRODUCER, state=state, held=3, in_hand=hand, engine_tokens=tokens, capacity=8)


def report() -> Report:
    facts = DatasetFacts(rows=10, digest="d")
    return Report(
        uuid=UUID,
        producer=PRODUCER,
        host="here",
        pid=2,
        engine_world_size=1,
        state=ProducerState.JOINING,
        capacity=8,
        plan_digest="p",
        dataset=facts,
        agreed={},
        digests={},
    )


def step(number: int, reward: float = 0.5, waited: float = 1.0, whole: float = 4.0) -> StepMetrics:
    values = {
        "train/reward": reward,
        "train/loss": 0.01,
        "train/avg_trajectory_age": 0.25,
        "performance/tokens_per_s": 1234.0,
        "timing/train/total_step_time": whole,
        "timing/train/exposed_generation": waited,
    }
    return StepMetrics(uuid=UUID, incarnation=0, step=number, seal_offset=9, config_digest="c0", metrics=values)


def beat(number: int = 1, incarnation: int = 0, **figures: object) -> Beat:
    return Beat.model_validate({"uuid": UUID, "incarnation": incarnation, "number": number, **figures})


def figures() -> dict[str, Any]:
    return {
        "waits_for": "5 of 16 groups of version 3",
        "lead": 1,
        "window": {3: OpenVersion(unassigned=1, assigned=4, filled=11), 4: OpenVersion(unassigned=14, assigned=2, filled=0)},
        "counts": {"reissued": 6, "ignored_status": 2},
        "failures": {"lost": 4},
        "refusals": {"digest": 3},
    }
