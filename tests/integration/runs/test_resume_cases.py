"""A learner and its only producer die; others go on from the first checkpoint: nothing that was published is rolled out again."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.clients import admin
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline
from schemas.config.kafka import KafkaConfig
from schemas.records.headers import as_mapping
from tests.brokers import Broker
from tests.chaos.striking.watched_run import START_S
from tests.chaos.striking.by_hand import by_hand
from tests.chaos.striking.crashes import RUN, Account, CrashingRun, G, N, Strike
from tests.fakes.nursery import Nursery
from tests.pipeline import environment

pytestmark = pytest.mark.timeout(300)

A = 1
ALONE = (*RUN, "producer.count=1", f"grpo.max_trajectory_age_steps={A}", "grpo.max_num_steps=100000", "dispatch.lease_beats=6",
         "checkpointing.save_period=1000")  # fmt: skip


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery(environment(""))
    yield made
    made.close()


def stuck_after(groups: int) -> str:
    """A producer that finishes so many groups, the first that it is asked for, and no other."""
    never = list(range(groups * G, groups * G + 64 * G))
    return f"producer.scripted={{seconds_per_token: 0.01, by_draw: true, hang_on: {never}}}"


def groups_in(run: CrashingRun, version: int) -> int:
    topic = run.topics.trajectories(version)
    if topic not in admin.topics_of_run(make_admin(KafkaConfig(), run.bootstrap, "tests"), run.id, Deadline(30)):
        return 0
    records = run.records([topic])[topic]
    return sum(as_mapping(record.headers())["kind"] != b"seal" for record in records)


def goes_on(run: CrashingRun, version: int, published: int) -> None:
    """Another learner and another producer train `version`, of which `published` groups are there, and two more."""
    account = Account()
    run.note(account)
    before = list(account.outcomes)
    assert [path.name for path in (run.run_folder / "checkpoints").iterdir()] == ["step_00000000"]
    learner = run.learner(resume=True)
    run.producer("second")
    run.reaches(version + 3, START_S)
    assert "step_00000000 as version 0" in learner.output
    # All that was announced; of two versions that were trained the second one may not have been.
    assert re.search(rf"caught up: ({version - 1}|{version}) steps trained again, 0 differ", learner.output), learner.output
    run.note(account)
    assert account.outcomes[: len(before)] == before
    steps = [outcome.step for outcome in account.outcomes]
    assert steps == list(range(len(steps)))
    versions = run.versions(version + 3, N)
    for found in versions:
        assert len(found.groups) == N, f"version {found.number} has {len(found.groups)} groups"
        ages = [found.number - span.version for group in found.groups.values() for t in group.trajectories for span in t.spans]
        assert 0 <= min(ages) <= max(ages) <= A
    makers = [[group.producer.rpartition("-")[0] for _, group in sorted(found.trained().items())] for found in versions]
    assert makers == [*[["first"] * N] * version, ["first"] * published + ["second"] * (N - published), *[["second"] * N] * 2]


def test_a_version_that_is_complete_is_sealed_and_trained_and_the_next_one_is_filled(
    broker: Broker, nursery: Nursery, tmp_path: Path
) -> None:
    with by_hand(broker.bootstrap, tmp_path, nursery, *ALONE, kind=CrashingRun) as run:
        strike = Strike("dispatcher.before_seal", 3)
        learner = run.started(strike, resume=False)
        first = run.producer("first", stuck_after(3 * N))
        run.watch()
        run.dies(learner, strike)
        assert (groups_in(run, 2), groups_in(run, 3)) == (N, 0)
        first.kill()
        goes_on(run, version=2, published=N)


def test_a_version_that_is_half_filled_is_filled(broker: Broker, nursery: Nursery, tmp_path: Path) -> None:
    with by_hand(broker.bootstrap, tmp_path, nursery, *ALONE, kind=CrashingRun) as run:
        learner = run.learner()
        first = run.producer("first", stuck_after(2 * N + N // 2))
        run.watch()
        run.reaches(2, START_S)
        run.until(lambda: groups_in(run, 2) == N // 2, START_S, "half of version 2")
        for part in (learner, first):
            part.awaited = True
            part.send(signal.SIGKILL)
            part.end()
        goes_on(run, version=2, published=N // 2)
