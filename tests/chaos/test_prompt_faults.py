"""Bad prompts, environments and records: replaced or refused, counted, never trained; the run finishes, or says why not."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.draws import row_of
from schemas.identity import Attempt, new_uuid
from schemas.records import group as groups
from schemas.records.group import Span, Trajectory, TrajectoryGroup
from schemas.records.headers import Headers, of_group
from schemas.records.quarantine import Quarantined
from schemas.records.status import Heartbeat, ProducerState
from schemas.records.validity import Rules, check
from tests.brokers import Broker
from tests.chaos.striking.by_hand import ByHand, by_hand
from tests.chaos.striking.watched_run import START_S
from tests.fakes.nursery import Nursery
from tests.fakes.producer.faulty_environment import CAUSE
from tests.pipeline import SCRIPTED

N, G, A, STEPS = 4, 2, 1, 8
VOCABULARY = 48  # of the tiny model
LENGTH = 64
ATTEMPTS = 3
# One row of a version each; the first eight rows of a generator are tried when it is opened.
LONG, RAISES, HANGS = 2 * N, 3 * N + 1, 4 * N + 2
RUN = (
    *SCRIPTED,
    f"grpo.num_prompts_per_step={N}",
    f"grpo.num_generations_per_prompt={G}",
    f"grpo.max_trajectory_age_steps={A}",
    "environment.name=tests.fakes.producer.faulty_environment:Faulty",
    "producer.count=2",
    "producer.scripted={seconds_per_token: 0.05}",
    "producer.max_trajectory_retries=0",
    "producer.rollout_timeout_s=2",
    f"dispatch.max_attempts={ATTEMPTS}",
    "dispatch.beat_s=0.2",
    "dispatch.heartbeat_s=0.2",
    "checkpointing.save_period=100000",
)

Damage = Callable[[TrajectoryGroup], TrajectoryGroup]


def with_first(**changes: Callable[[Trajectory], Any]) -> Damage:
    """The group with its first trajectory changed."""

    def damaged(group: TrajectoryGroup) -> TrajectoryGroup:
        first, *others = group.trajectories
        values = {name: change(first) for name, change in changes.items()}
        return dataclasses.replace(group, trajectories=(dataclasses.replace(first, **values), *others))

    return damaged


def filled(value: float) -> Callable[[Trajectory], Any]:
    return lambda t: np.full_like(t.logprobs, value)


def moved(**changes: int) -> Damage:
    return lambda group: dataclasses.replace(group, request=dataclasses.replace(group.request, **changes))


DAMAGES: list[tuple[str, Damage]] = [
    ("logprobs", with_first(logprobs=filled(np.nan))),
    ("logprobs", with_first(logprobs=filled(np.inf))),
    ("members", lambda group: dataclasses.replace(group, trajectories=group.trajectories[:1])),
    ("vocabulary", with_first(tokens=lambda t: np.full_like(t.tokens, VOCABULARY))),
    ("row", lambda group: dataclasses.replace(group, row=group.row + 1)),  # the prompt of another slot
    ("row", moved(draw=1)),  # the prompt of another draw
    ("version", moved(version=HANGS // N + 1)),
    ("slot", moved(slot=N)),
    ("run", lambda group: dataclasses.replace(group, run=new_uuid())),
    ("age", with_first(spans=lambda t: (Span(HANGS // N - A - 1, 0, len(t.tokens)),))),
]


def make_valid(run: ByHand, version: int, slot: int) -> TrajectoryGroup:
    """A group that would be accepted for the slot's first draw, made of one that was accepted for another version."""
    topic = run.topics.trajectories(0)
    model = groups.decode(run.records([topic])[topic][0].value())
    group = dataclasses.replace(
        model,
        request=Attempt(version, slot, 0, 99),
        row=row_of(0, None, N, version, slot, 0),
        producer="stranger-00000000",
        trajectories=tuple(dataclasses.replace(t, spans=(Span(version, 0, len(t.tokens)),)) for t in model.trajectories),
    )
    check(group, version, Rules(run.uuid, 0, None, None, N, G, A, VOCABULARY, LENGTH, 1 << 20))
    return group


def write_bad_records(run: ByHand, version: int, slot: int) -> Counter[str]:
    """Into the open topic of `version`, for a slot that nobody fills; returns how many there are of each reason."""
    topic, valid = run.topics.trajectories(version), make_valid(run, version, slot)
    for _, damage in DAMAGES:
        group = damage(valid)
        value = groups.encode(group)
        run.write(topic, value, str(group.request), of_group(group, value))
    nonsense = b"\x93nonsense"
    headers: Headers = [("kind", b"rollout"), ("sha256", hashlib.sha256(nonsense).hexdigest().encode())]
    run.write(topic, nonsense, "nonsense", headers)
    run.write(topic, groups.encode(valid))  # without a digest nobody knows whether it is whole
    return Counter([reason for reason, _ in DAMAGES] + ["malformed", "digest"])


def write_bad_status(run: ByHand) -> int:
    stranger = Heartbeat(
        uuid=run.uuid, producer="stranger-00000000", state=ProducerState.SERVING, held=0, engine_tokens=1, capacity=8
    )
    said = [
        b"",
        b"\xff\x00garbage",
        b'{"schema": "weir.status/1", "kind": "song", "uuid": "x"}',
        stranger.to_bytes(),
        stranger.model_copy(update={"uuid": new_uuid()}).to_bytes(),
    ]
    for value in said:
        run.write(run.topics.status, value)
    return len(said)


@pytest.mark.timeout(300)
def test_bad_prompts_are_replaced_and_bad_records_refused_and_the_run_finishes(
    broker: Broker, nursery: Nursery, tmp_path: Path
) -> None:
    args = f"environment.args={{raises: [{RAISES}], hangs: [{HANGS}], long: [{LONG}]}}"
    with by_hand(broker.bootstrap, tmp_path, nursery, *RUN, args, f"grpo.max_num_steps={STEPS}") as run:
        learner = run.learner()
        producers = [run.producer("one"), run.producer("two")]
        run.watch()
        version, slot = divmod(HANGS, N)
        run.until(lambda: run.state is not None and version in run.state.window, START_S, "the version that hangs")
        refused = write_bad_records(run, version, slot)
        ignored = write_bad_status(run)
        assert run.state is not None and run.state.sealed_through < version, "the version did not wait for the test"
        assert learner.end() == 0
        assert [producer.end() for producer in producers] == [0, 0]

        trained = run.versions(STEPS, N)
        later = {v.number * N + s for v in trained for s, entry in v.seal.slots.items() if entry.draw > 0}
        assert later == {LONG, RAISES, HANGS}
        assert {entry.draw for v in trained for entry in v.seal.slots.values()} == {0, 1}
        assert all(group.producer != "stranger-00000000" for v in trained for group in v.trained().values())
        rows = {v.number * N + s: group.row for v in trained for s, group in v.trained().items()}
        assert rows == {at: row_of(0, None, N, *divmod(at, N), draw=int(at in later)) for at in range(N * STEPS)}

        quarantined = [
            Quarantined.model_validate_json(r.value()) for r in run.records([run.topics.quarantine])[run.topics.quarantine]
        ]
        assert Counter(record.reason for record in quarantined) == refused
        assert {record.topic for record in quarantined} == {run.topics.trajectories(version)}

        last = json.loads((tmp_path / run.id / "metrics.jsonl").read_text().splitlines()[-1])
        counted = {name.removeprefix("dispatch/refused_"): last[name] for name in last if name.startswith("dispatch/refused_")}
        assert counted == refused
        assert last["dispatch/failures_prompt"] == 1
        assert last["dispatch/failures_rollout"] == 2 * ATTEMPTS
        assert last["dispatch/ignored_status"] == ignored


@pytest.mark.timeout(300)
def test_an_environment_that_fails_on_everything_ends_the_run_with_its_words(
    broker: Broker, nursery: Nursery, tmp_path: Path
) -> None:
    with by_hand(broker.bootstrap, tmp_path, nursery, *RUN, "environment.args={always: true}", "grpo.max_num_steps=100") as run:
        learner, producer = run.learner(), run.producer("one")
        run.producer("two")
        run.watch()
        assert learner.end(START_S) == 1
        assert CAUSE in learner.output
        run.until(lambda: run.state is not None and run.state.stop is not None, 30, "the stop")
        assert run.state is not None and run.state.stop is not None
        assert CAUSE in run.state.stop.reason
        assert run.state.stop.resumable
        assert producer.end() == 1
        assert CAUSE in producer.output
        assert not (tmp_path / run.id / "metrics.jsonl").read_text(), "a step was trained"
