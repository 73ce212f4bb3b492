"""Two learners want one run: one has it, the other stops, names it and changes nothing; nothing is trained or told twice."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from learner.checkpoint.folders import read, step_folder, versions
from schemas.records import control
from schemas.records import seal as seals
from schemas.records.control import Claim
from schemas.records.headers import as_mapping
from schemas.records.metrics import StepMetrics
from tests.brokers import Broker
from tests.chaos.striking.by_hand import by_hand
from tests.chaos.striking.crashes import PRODUCERS, RUN, Account, CrashingRun, N
from tests.chaos.striking.part import Part
from tests.chaos.striking.watched_run import START_S
from tests.fakes.nursery import Nursery

LONG = (*RUN, "grpo.max_num_steps=100000")
UNDER_WAY_S = 1.0
"""A record may have been on its way to the broker when the claim came in."""


@contextmanager
def working(broker: Broker, nursery: Nursery, folder: Path) -> Iterator[tuple[CrashingRun, Part]]:
    """A run whose learner trains."""
    with by_hand(broker.bootstrap, folder, nursery, *LONG, kind=CrashingRun) as run:
        learner = run.learner()
        for name in PRODUCERS:
            run.producer(name)
        run.watch()
        run.reaches(2, START_S)
        yield run, learner


def loser_of(run: CrashingRun, learners: list[Part]) -> tuple[Part, Part]:
    """(who has the run, who has ended)."""
    for learner in learners:
        learner.awaited = True
    run.until(lambda: not all(learner.alive for learner in learners), START_S, "one of the learners to stop")
    winner, loser = sorted(learners, key=lambda learner: not learner.alive)
    assert loser.end() == 1, loser.output[-3000:]
    assert winner.alive, winner.output[-3000:]
    winner.awaited = False
    return winner, loser


def check_naming(run: CrashingRun, winner: Part, loser: Part) -> int:
    """The loser's last words name the winner. Returns the loser's incarnation."""
    words = re.search(
        r"another learner took the run over: host=\S+ pid=(\d+) incarnation=(\d+); this one was (\d+)", loser.output
    )
    assert words is not None, loser.output[-3000:]
    pid, incarnation, own = (int(word) for word in words.groups())
    assert pid in {process.pid for process in winner.tree()}
    run.until(lambda: run.state is not None and run.state.incarnation == incarnation, START_S, "the winner's state")
    return own


def check_once(run: CrashingRun, idle: set[int]) -> None:
    """Every step is told once; nobody sealed or told anything after the next one's claim, and `idle` learners saved nothing."""
    account = Account()
    run.note(account)
    steps = [outcome.step for outcome in account.outcomes]
    assert steps == list(range(len(steps)))
    # The line follows the record: a kill in between leaves the last one to the next learner.
    assert run.steps() in (steps, steps[:-1])
    root = run.run_folder / "checkpoints"
    saved = {read(step_folder(root, version)).incarnation for version in versions(root)}
    assert not idle & saved, (idle, saved)

    topics = [run.topics.trajectories(version) for version in steps]
    records = run.records([run.topics.control, run.topics.metrics, *topics])
    claims = {r.offset(): seconds(r) for r in records[run.topics.control] if isinstance(control.decode(r.value()), Claim)}
    until = {own: claims[later] for own, later in pairwise(sorted(claims))}
    for record in records[run.topics.metrics]:
        outcome = StepMetrics.from_bytes(record.value())
        assert seconds(record) <= until.get(outcome.incarnation, math.inf) + UNDER_WAY_S, outcome
    for version, topic in enumerate(topics):
        first = next(record for record in records[topic] if as_mapping(record.headers())["kind"] == b"seal")
        seal = seals.decode(first.value(), run=run.uuid, version=version, prompts_per_step=N)
        assert seconds(first) <= until.get(seal.incarnation, math.inf) + UNDER_WAY_S, seal


def seconds(record: Any) -> float:
    return float(record.timestamp()[1]) / 1000


def two_go_on(broker: Broker, nursery: Nursery, folder: Path, rounds: int) -> None:
    idle: set[int] = set()
    with working(broker, nursery, folder) as (run, learner):
        for number in range(rounds):
            learner.awaited = True
            learner.send(signal.SIGKILL)
            learner.end()
            known = run.frontier
            learner, loser = loser_of(run, [run.learner(resume=True) for _ in range(2)])
            idle.add(check_naming(run, learner, loser))
            run.reaches(known + 1, START_S)
            print(f"race {number}: version {known} before, {run.frontier} after")
        learner.awaited = True
        learner.kill()
        check_once(run, idle)
    assert len(idle) == rounds


def one_takes_over(broker: Broker, nursery: Nursery, folder: Path, rounds: int) -> None:
    """The one that works when the other one comes is the one that stops."""
    with working(broker, nursery, folder) as (run, learner):
        for _ in range(rounds):
            known = run.frontier
            before = learner
            learner, loser = loser_of(run, [before, run.learner(resume=True)])
            assert loser is before
            check_naming(run, learner, loser)
            run.reaches(known + 1, START_S)
        learner.awaited = True
        learner.kill()
        announced = [timed.record.frontier for timed in run.states if timed.record.frontier is not None]
        assert announced == sorted(announced), "the frontier went back"
        check_once(run, set())


def two_start_anew(broker: Broker, nursery: Nursery, folder: Path) -> None:
    with by_hand(broker.bootstrap, folder, nursery, *LONG, kind=CrashingRun) as run:
        learners = [run.learner() for _ in range(2)]
        for learner in learners:
            learner.awaited = True
        run.until(lambda: not all(learner.alive for learner in learners), START_S, "one of the learners to stop")
        winner, loser = sorted(learners, key=lambda learner: not learner.alive)
        assert loser.end() == 2, loser.output[-3000:]
        assert "this run id is in use already" in loser.output
        for name in PRODUCERS:
            run.producer(name)
        run.watch()
        winner.awaited = False
        run.reaches(2, START_S)
        winner.awaited = True
        winner.kill()
        run.learner(resume=True)  # the run's uuid is the one that its checkpoints have
        run.reaches(run.frontier + 1, START_S)


@pytest.mark.timeout(300)
def test_of_two_learners_that_go_on_with_a_run_at_once_one_stops_and_names_the_other(
    broker: Broker, nursery: Nursery, tmp_path: Path
) -> None:
    two_go_on(broker, nursery, tmp_path, rounds=2)


@pytest.mark.timeout(300)
def test_a_learner_that_works_stops_when_another_one_takes_the_run_over(broker: Broker, nursery: Nursery, tmp_path: Path) -> None:
    one_takes_over(broker, nursery, tmp_path, rounds=2)


@pytest.mark.timeout(300)
def test_of_two_learners_that_start_a_new_run_at_once_one_gets_it(broker: Broker, nursery: Nursery, tmp_path: Path) -> None:
    two_start_anew(broker, nursery, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_whoever_is_first_of_many_pairs(broker: Broker, nursery: Nursery, tmp_path: Path) -> None:
    two_go_on(broker, nursery, tmp_path / "go-on", rounds=20)
    one_takes_over(broker, nursery, tmp_path / "take-over", rounds=20)
    for number in range(5):
        two_start_anew(broker, nursery, tmp_path / f"anew-{number}")
