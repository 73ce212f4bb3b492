from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config.clients.reader import Record
from launch.cli.describe import record_json, record_lines
from schemas.records.control import Claim, Member, State, Stop
from schemas.records.group import FinishReason
from schemas.records.metrics import StepMetrics
from schemas.records.quarantine import Quarantined
from schemas.records.requests import Request, SamplingParameters
from schemas.records.status import Ack, Heartbeat, ProducerState
from tests.fakes.records.groups import make_group, make_trajectory
from tests.fakes.records.make import UUID
from tests.fakes.records.runs import RUN, group_record, json_record, make_seal, seal_record


def letters(ids: Sequence[int]) -> str:
    return "".join(chr(ord("a") + i) for i in ids)


def line(record: Record) -> str:
    (only,) = record_lines(record)
    return only


def test_a_group_is_one_line_with_all_that_a_person_asks_for() -> None:
    shown = line(group_record(make_group(slot=3, row=5, rewards=(1.0, 0.0, 0.0, 0.0)), offset=7))
    of_all = "[0]@7     v00000012/s0003/d0/a0  reward 0.250 [0x3 1]  len [3x4]  stop:4"
    assert shown == f"{of_all}  row 5  versions 12  producer-0-abcd1234  0.25 s"


def test_versions_of_a_group_are_a_range_when_weights_changed_in_it() -> None:
    group = make_group(trajectories=(make_trajectory(10), make_trajectory(12, finish=FinishReason.LENGTH)))
    shown = line(group_record(group))
    assert "versions 10-12" in shown
    assert "length:1 stop:1" in shown


def test_text_shows_prompt_and_completions_best_first() -> None:
    best_one = make_trajectory(tokens=(3, 4), finish=FinishReason.LENGTH)
    group = make_group(trajectories=(make_trajectory(tokens=(1, 2), rewards=0.0), best_one))
    _, prompt, best, worst = record_lines(group_record(group), letters)
    assert prompt.split() == ["prompt", '"bfg"']
    assert best.split() == ["1.000", '"de"', "(truncated)"]
    assert worst.split() == ["0.000", '"bc"']


def test_text_with_line_breaks_stays_on_its_line() -> None:
    lines = record_lines(group_record(make_group()), lambda ids: "a\nb")
    assert all("\n" not in line for line in lines)


def test_reward_components_are_named_when_there_are_several() -> None:
    t = make_trajectory(rewards={"format": 0.5, "answer": 1.0})
    lines = record_lines(group_record(make_group(trajectories=(t,))), letters)
    assert "format=0.5 answer=1" in lines[-1]


def test_a_seal_names_the_slots_of_later_draws() -> None:
    shown = line(seal_record(make_seal(slots=3, later=(1,)), offset=3))
    assert shown == "[0]@3     v00000012/seal  3 slots  incarnation 4  later draws or attempts: s0001/d1/a0"


def test_a_damaged_record_is_a_line_that_says_so() -> None:
    whole = group_record(make_group())
    shown = line(dataclasses.replace(whole, value=whole.value[:-5]))
    assert "unreadable: malformed" in shown
    assert "unreadable" in line(dataclasses.replace(whole, topic="something.else"))


JSON_RECORDS = [
    (
        "control",
        Claim(uuid=UUID, host="here", pid=7, config_digest="c0ffee"),
        ["claim", "pid 7 on here", "c0ffee"],
    ),
    (
        "control",
        State(
            uuid=UUID,
            incarnation=4,
            config_digest="c",
            frontier=3,
            sealed_through=2,
            window={3: "x", 4: "y"},
            members={"producer-0-ab": Member(requests_partition=0, held=3)},
            refused={"producer-1-cd": ["model.dtype: float32 here, bfloat16 there"]},
            stop=Stop(reason="done", version=3, resumable=True),
        ),
        ["state i4", "F 3", "sealed through 2", "window 3-4", "producer-0-ab@3", "refused producer-1-cd", "STOP at 3: done"],
    ),
    (
        "status",
        Heartbeat(uuid=UUID, producer="p", state=ProducerState.SERVING, held=2, engine_tokens=99, capacity=8),
        ["heartbeat", "p", "serving", "version 2", "0/8 requests", "99 tokens"],
    ),
    (
        "status",
        Ack(uuid=UUID, producer="p", incarnation=0, round=2, phase="loaded", version=3, ok=False, error="digest differs"),
        ["ack", "round 2 loaded of version 3", "FAILED: digest differs"],
    ),
    (
        "requests",
        Request(
            uuid=UUID,
            kind="rollout",
            producer="p",
            incarnation=0,
            target=12,
            slot=3,
            draw=0,
            attempt=1,
            row=5,
            min_version=11,
            sampling=SamplingParameters(n=4, max_new_tokens=5, temperature=1.0),
        ),
        ["v00000012/s0003/d0/a1", "rollout", "to p", "row 5", "from version 11", "n 4"],
    ),
    (
        "metrics",
        StepMetrics(uuid=UUID, incarnation=0, step=7, seal_offset=1, config_digest="c", metrics={"train/reward": 0.5}),
        ["step 7", "reward 0.500"],
    ),
    (
        "quarantine",
        Quarantined.of(
            uuid=UUID, topic="t", partition=0, offset=9, key="k", sha256="ab" * 32, reason="digest", detail="differs", value=b"x"
        ),
        ["t[0]@9", "k", "digest: differs"],
    ),
]


@pytest.mark.parametrize(("topic", "record", "words"), JSON_RECORDS)
def test_records_of_the_json_topics_are_one_line(topic: str, record: object, words: Sequence[str]) -> None:
    shown = line(json_record(topic, record))  # type: ignore[arg-type]
    for word in words:
        assert word in shown


@pytest.mark.parametrize(("topic", "record", "words"), JSON_RECORDS)
def test_json_output_holds_the_record_as_it_was_written(topic: str, record: object, words: Sequence[str]) -> None:
    written = json_record(topic, record)  # type: ignore[arg-type]
    shown = json.loads(json.dumps(record_json(written)))
    assert shown["value"] == json.loads(written.value)
    assert shown["topic"] == f"{RUN}.{topic}"


def test_json_output_of_a_group_has_its_numbers_and_text() -> None:
    shown = json.loads(json.dumps(record_json(group_record(make_group()), letters)))["value"]
    assert shown["prompt"] == [1, 5, 6]
    assert shown["prompt_text"] == "bfg"
    assert shown["trajectories"][0]["tokens"] == [7, 8, 2]
    assert shown["trajectories"][0]["spans"] == [[12, 0, 3]]


@given(
    st.binary(max_size=200),
    st.sampled_from(["control", "status", "requests", "metrics", "quarantine", "trajectories.v00000001", "x"]),
    st.sampled_from([None, "v00000001/seal", "k"]),
)
def test_any_bytes_in_any_topic_give_a_line(value: bytes, topic: str, key: str | None) -> None:
    record = Record(f"{RUN}.{topic}", 0, 0, key, value, {}, 0)
    assert len(record_lines(record, letters)) >= 1
    json.dumps(record_json(record, letters))
