"""The broker dies while a process is at a named point, and comes back: all wait and go on, nothing is lost or doubled.

Each point freezes its process once. The broker is then killed, or its disk becomes full, which ends it; the process goes on,
finds no broker, and the broker is started again where it was. Nobody else is started again, and every step comes out as in an
undisturbed run, to the last bit.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from schemas import failpoints
from tests.chaos.striking.by_hand import by_hand
from tests.chaos.striking.crashes import PRODUCERS, RUN, Account, CrashingRun, same_states, undisturbed
from tests.chaos.striking.part import Part
from tests.chaos.striking.watched_run import START_S
from tests.fakes.nursery import Nursery
from tests.support import eventually

BROKER_S = 90.0
FULL_BYTES = 1 << 15  # its own log, which says why it ended, must find room
POINT_S = 120.0  # a client may look for the broker again only after a while

PRODUCER = tuple(point for point in failpoints.POINTS if point.startswith("producer."))
LEARNER = tuple(point for point in failpoints.POINTS if not point.startswith("producer."))
FEW = ("dispatcher.before_seal", "learner.after_manifest", "producer.publish", "producer.pause")

Fault = Callable[[LocalBroker], None]


def killed(broker: LocalBroker) -> None:
    assert broker.kill()


def full(broker: LocalBroker) -> None:
    """No file of the broker grows beyond a few records: one of the next, or the index of the next topic, ends it."""
    assert broker.pid is not None
    psutil.Process(broker.pid).rlimit(psutil.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))


def armed(points: Sequence[str], marks: Path) -> dict[str, str]:
    """Each point at a passing of its own, so that one outage is over before the next begins."""
    strikes = " ".join(f"{point}=SIGSTOP@{3 + 2 * number}" for number, point in enumerate(points))
    return {failpoints.VARIABLE: strikes, failpoints.ONCE: str(marks)}


def struck_in_turn(
    broker: LocalBroker,
    folder: Path,
    nursery: Nursery,
    points: tuple[str, ...],
    faults: Sequence[Fault],
    away_s: float,
    *overrides: str,
    nproc: int = 1,
) -> Account:
    """A run to its end; the broker fails at each of `points`, in one way after the other.

    Raises:
        AssertionError: a point was not reached, a process died, or a step was told twice or never.
    """
    account, marks, outages = Account(), folder / "struck", 0
    marks.mkdir(parents=True)
    with by_hand(broker.bootstrap or "", folder, nursery, *overrides, kind=CrashingRun) as run:
        run.arm(armed([point for point in points if point in LEARNER], marks))
        learner = run.started(resume=False, nproc=nproc)
        run.arm(armed([point for point in points if point in PRODUCER], marks))
        parts = [learner, *(run.producer(name) for name in PRODUCERS)]
        run.watch()
        seen: set[str] = set()
        while len(seen) < len(points):
            frozen = run.until(lambda: frozen_in(parts), POINT_S, f"a point besides {sorted(seen)} to be reached")
            since, fault = time.monotonic(), faults[outages % len(faults)]
            fault(broker)
            for process in frozen:
                process.send_signal(signal.SIGCONT)
            eventually(lambda: broker.pid is None, BROKER_S, "the broker to end")
            if fault is full:
                assert "File too large" in (broker.fault() or ""), broker.fault()
            time.sleep(away_s)  # the outage itself
            broker.start(Deadline(BROKER_S))
            now = {mark.name for mark in marks.iterdir()}
            away = time.monotonic() - since
            print(f"{fault.__name__} at {sorted(now - seen)}: away for {away:.1f} s, version {run.frontier} announced")
            seen, outages = now, outages + 1
        assert learner.end(START_S) == 0, learner.output[-4000:]
        assert [part.end() for part in parts[1:]] == [0] * len(PRODUCERS)
        log = run.log
        account.outcomes = log.outcomes()
        log.close()
        assert run.steps() == [outcome.step for outcome in account.outcomes] == list(range(len(account.outcomes)))
    print(f"{outages} outages at {len(points)} points")
    return account


def frozen_in(parts: list[Part]) -> list[psutil.Process]:
    for part in parts:
        if not part.alive:
            raise RuntimeError(f"{part.name} died:\n{part.output[-4000:]}")
    processes = [process for part in parts for process in part.tree()]
    return [process for process in processes if process.status() == psutil.STATUS_STOPPED]


def goes_on(
    broker: LocalBroker,
    nursery: Nursery,
    folder: Path,
    points: tuple[str, ...],
    faults: Sequence[Fault],
    *overrides: str,
    away_s: float = 0.0,
    nproc: int = 1,
) -> None:
    steps = 8 + 2 * len(points)
    bootstrap = broker.start(Deadline(BROKER_S))
    run = (*RUN, f"grpo.max_num_steps={steps}", f"learner.nproc={nproc}", *overrides)
    wanted = undisturbed(bootstrap, folder / "undisturbed", nursery, *run, nproc=nproc)
    saving = ("checkpointing.save_period=1", "checkpointing.keep=2")
    found = struck_in_turn(broker, folder / "struck-run", nursery, points, faults, away_s, *run, *saving, nproc=nproc)
    same_states(found, wanted, steps)


@pytest.mark.timeout(400)
def test_a_broker_that_fails_costs_nobody_anything(
    own_broker: Callable[..., LocalBroker], nursery: Nursery, tmp_path: Path
) -> None:
    goes_on(own_broker(), nursery, tmp_path, FEW, (killed, full))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", [killed, full])
@pytest.mark.parametrize("points", [LEARNER, PRODUCER], ids=["learner", "producer"])
def test_it_does_not_at_any_point(
    own_broker: Callable[..., LocalBroker], nursery: Nursery, tmp_path: Path, points: tuple[str, ...], fault: Fault
) -> None:
    goes_on(own_broker(), nursery, tmp_path, points, [fault])


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_it_does_not_if_it_is_away_for_a_minute(own_broker: Callable[..., LocalBroker], nursery: Nursery, tmp_path: Path) -> None:
    goes_on(own_broker(), nursery, tmp_path, FEW, [killed], away_s=60)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_two_ranks_outlast_an_outage_that_is_longer_than_any_of_them_waits_for_the_other(
    own_broker: Callable[..., LocalBroker], nursery: Nursery, tmp_path: Path
) -> None:
    points = ("dispatcher.before_seal", "learner.before_commit", "learner.checkpoint", "learner.after_manifest")
    impatient = ("learner.rank_timeout_s=6", "refit.phase_timeout_s=4")
    goes_on(own_broker(), nursery, tmp_path, points, [killed], *impatient, away_s=10, nproc=2)
