"""Producers are killed, frozen for longer than their lease, and told to leave, at every point of their work.

One run outlives all of it. Afterwards its log says what may be asked of it: every version has its N slots, the prompts are those
of an undisturbed run, no token is too old, and nobody stood idle for longer than the one deadline that a fault may cost.
"""

from __future__ import annotations

import signal
import time
from bisect import bisect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from schemas import failpoints
from schemas.records.status import Beat, Left
from tests.brokers import Broker
from tests.chaos.striking.by_hand import ByHand, by_hand
from tests.chaos.striking.part import Part
from tests.chaos.striking.version import Version
from tests.chaos.striking.watched_run import START_S
from tests.fakes.nursery import Nursery
from tests.pipeline import SCRIPTED, SMALL

IDLE = "idle"
POINTS = (IDLE, *(point for point in failpoints.POINTS if point.startswith("producer.")))
REFIT = ("producer.pause", "producer.receive", "producer.received", "producer.loaded")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)

N, G, A = 6, 2, 1
TOKENS, TOKEN_S = 5, 0.1
RUN = (
    *SCRIPTED,
    f"grpo.num_prompts_per_step={N}",
    f"grpo.num_generations_per_prompt={G}",
    f"grpo.max_trajectory_age_steps={A}",
    f"generation.max_new_tokens={TOKENS}",
    f"producer.scripted={{seconds_per_token: {TOKEN_S}}}",
    "producer.count=2",
    "checkpointing.save_period=100000",
)
ENDLESS = "grpo.max_num_steps=100000"
SURVIVORS = ("steady-0", "steady-1")


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the run judges, and how long a test waits for what the run must do within its own deadlines."""

    beat_s: float
    phase_timeout_s: float
    within_s: float
    lease_beats: int = 15

    @property
    def overrides(self) -> tuple[str, ...]:
        return (
            f"dispatch.beat_s={self.beat_s}",
            f"dispatch.heartbeat_s={self.beat_s}",
            f"dispatch.lease_beats={self.lease_beats}",
            f"refit.phase_timeout_s={self.phase_timeout_s}",
        )

    @property
    def deadline_beats(self) -> int:
        """What one fault may cost the others: a phase of a round, which a lease ends earlier."""
        return max(self.lease_beats, round(self.phase_timeout_s / self.beat_s))


FAST = Pace(beat_s=0.2, phase_timeout_s=3.0, within_s=60.0)
DEFAULT = Pace(beat_s=1.0, phase_timeout_s=20.0, within_s=120.0)


def strike(run: ByHand, name: str, signum: signal.Signals, point: str, pace: Pace) -> None:
    """One victim from its start to its end."""
    # Its first round gives it weights, alone. It is struck in the next one, in which the others are too.
    passing = 2 if point in REFIT else 1
    victim = run.producer(name, strike="" if point == IDLE else f"{point}={signum.name}@{passing}")
    if point == IDLE:
        run.until(lambda: is_idle(run, name), pace.within_s, f"{name} without work")
        victim.send(signum)
    match signum:
        case signal.SIGKILL:
            assert victim.end(pace.within_s) == -signal.SIGKILL
        case signal.SIGTERM:
            assert victim.end(pace.within_s) == 0, victim.output
            identity = run.identity(name)
            said = [timed.record for timed in run.status if isinstance(timed.record, Left)]
            assert identity in {left.producer for left in said}, f"{name} left without a word"
        case _:
            thaw_when_lost(run, victim, pace)
    run.until(lambda: not run.is_member(name), pace.within_s, f"{name} to be no member any more")
    run.reaches(run.frontier + 1, pace.within_s)


def is_idle(run: ByHand, name: str) -> bool:
    beat = run.heartbeat(name)
    return run.holds(name) >= 0 and beat is not None and beat.state == "serving" and not beat.in_hand


def thaw_when_lost(run: ByHand, victim: Part, pace: Pace) -> None:
    name = victim.name
    run.until(lambda: victim.frozen, pace.within_s, f"{name} to be stopped")
    run.until(lambda: not run.is_member(name), pace.within_s, f"{name} to be taken for lost")
    known, before = run.frontier, run.heartbeat(name)
    victim.send(signal.SIGCONT)
    generated = 0 if before is None else before.engine_tokens

    def of_use() -> bool:
        assert victim.alive, f"{name} ended (code {victim.process.poll()}): {victim.output[-2000:]}"
        beat = run.heartbeat(name)
        return run.holds(name) >= known and beat is not None and beat.engine_tokens > generated

    run.until(of_use, pace.within_s, f"{name} to work again")
    victim.send(signal.SIGTERM)
    assert victim.end(pace.within_s) == 0, victim.output


def check_log(run: ByHand, pace: Pace, began: float, ended: float) -> None:
    """What the log of the run says, whatever was done to its producers."""
    versions = run.versions(run.frontier, N)
    rows = []
    for version in versions:
        trained = version.trained()
        assert sorted(trained) == list(range(N))
        assert len({entry.offset for entry in version.seal.slots.values()}) == N
        assert {entry.draw for entry in version.seal.slots.values()} == {0}
        for group in trained.values():
            rows.append(group.row)
            spans = [span for t in group.trajectories for span in t.spans]
            assert all(0 <= version.number - span.version <= A for span in spans), (version.number, spans)
    # The generator has no end: draw 0 of the slots walks the rows in order (`schemas.draws.row_of`), each once.
    assert sorted(rows) == list(range(N * len(versions)))
    for name in SURVIVORS:
        gaps = gaps_of(run, name, versions, began, ended)
        assert len(gaps) > len(POINTS), f"{name} hardly worked"
        idle, at = gaps[-1]
        # The last group before the round that the fault hits may be that of a rollout which began long before it, and the next
        # one is of a rollout that begins after it: two usual gaps, and ten beats on a machine whose cores have other work.
        usual, _ = gaps[len(gaps) * 9 // 10]
        limit = pace.deadline_beats + 2 * usual + 10
        print(f"{name} published nothing for at most {idle} beats, usually {usual}, allowed are {limit}")
        assert idle <= limit, f"{name} published nothing for {idle} beats at {at}, allowed are {limit}"


def gaps_of(run: ByHand, name: str, versions: list[Version], began: float, ended: float) -> list[tuple[int, float]]:
    """Beats between each two groups of a producer, and when; the fewest first. Beats, not seconds: they are what the run's
    deadlines count, and on a machine that is slow they are slow too."""
    beats = [timed.at for timed in run.status if isinstance(timed.record, Beat)]
    identity = run.identity(name)
    times = [t for v in versions for offset, t in v.times.items() if v.groups[offset].producer == identity]
    times = sorted(t for t in times if began <= t <= ended)
    return sorted((bisect(beats, b) - bisect(beats, a), a) for a, b in pairwise(times))


def outlives_everything(run: ByHand, pace: Pace, cases: list[list[tuple[signal.Signals, str]]]) -> None:
    """The cases in turn, those of one entry at a time; then an operator stops the run and its log is looked at."""
    learner = run.learner()
    steady = [run.producer(name) for name in SURVIVORS]
    run.watch()
    run.reaches(1, START_S)
    began = run.status[-1].at
    for number, together in enumerate(cases):
        since = time.monotonic()
        with ThreadPoolExecutor(len(together)) as threads:
            struck = [
                threads.submit(strike, run, f"victim-{number}-{signum.name.lower()}", signum, point, pace)
                for signum, point in together
            ]
        for future in struck:
            future.result()
        print(f"{[(signum.name, point) for signum, point in together]}: {time.monotonic() - since:.1f} s")
        assert learner.alive and all(part.alive for part in steady)
    ended = run.status[-1].at
    run.stop()
    assert learner.end() == 1
    assert "stopped by a test" in learner.output
    for part in steady:
        assert part.end() == 0
        assert "the run has ended: stopped by a test" in part.output
    check_log(run, pace, began, ended)


def one_by_one(points: Sequence[str] = POINTS) -> list[list[tuple[signal.Signals, str]]]:
    return [[(signum, point)] for point in points for signum in SIGNALS]


@pytest.mark.timeout(400)
def test_a_run_outlives_whatever_happens_to_its_producers_at_any_point_of_their_work(
    broker: Broker, nursery: Nursery, tmp_path: Path
) -> None:
    # Outside of a round the victims have nothing to do with each other: one of each kind at a time.
    cases = [[(signum, point) for signum in SIGNALS] for point in POINTS if point not in REFIT] + one_by_one(REFIT)
    with by_hand(broker.bootstrap, tmp_path, nursery, *RUN, ENDLESS, *FAST.overrides) as run:
        outlives_everything(run, FAST, cases)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_a_run_outlives_them_at_the_pace_of_the_default_settings(broker: Broker, nursery: Nursery, tmp_path: Path) -> None:
    with by_hand(broker.bootstrap, tmp_path, nursery, *RUN, ENDLESS, *DEFAULT.overrides) as run:
        outlives_everything(run, DEFAULT, one_by_one())


@pytest.mark.timeout(300)
def test_without_producers_a_run_ends_soon_and_goes_on_with_others(broker: Broker, nursery: Nursery, tmp_path: Path) -> None:
    steps, limit_s = 8, 4.0
    limits = (f"dispatch.no_producer_timeout_s={limit_s}", f"grpo.max_num_steps={steps}")
    with by_hand(broker.bootstrap, tmp_path, nursery, *RUN, *FAST.overrides, *limits) as run:
        learner = run.learner()
        first = [run.producer(f"first-{index}") for index in range(2)]
        run.watch()
        run.reaches(2, START_S)
        for part in first:
            part.send(signal.SIGKILL)
        # A lease, the limit, and what beats lose on a busy machine.
        assert learner.end(FAST.lease_beats * FAST.beat_s + limit_s + 20) == 1
        assert run.frontier < steps
        assert f"no producer for {limit_s:g} s (dispatch.no_producer_timeout_s), version {run.frontier}" in learner.output

        again = run.learner(resume=True)
        second = [run.producer(f"second-{index}") for index in range(2)]
        assert again.end(START_S) == 0, again.output
        assert [part.end() for part in second] == [0, 0]
        trained = run.versions(steps, N)
        assert sorted(group.row for v in trained for group in v.trained().values()) == list(range(N * steps))


VLLM = (
    *SMALL,
    "data.validation=null",
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "producer.count=2",
    "checkpointing.save_period=100000",
    ENDLESS,
)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_run_outlives_the_same_of_producers_with_a_real_engine(broker: Broker, nursery: Nursery, tmp_path: Path) -> None:
    within_s = 180.0
    with by_hand(broker.bootstrap, tmp_path, nursery, *VLLM) as run:
        learner = run.learner()
        parts = {name: run.vllm_producer(name) for name in ("steady", "killed", "frozen")}
        run.watch()
        run.until(lambda: all(run.holds(name) >= 0 for name in parts), 300, "three producers with weights")

        def rolls_out(name: str) -> bool:
            beat = run.heartbeat(name)
            return beat is not None and bool(beat.in_hand)

        run.until(lambda: rolls_out("killed"), within_s, "a rollout of the one that is to be killed")
        processes = parts["killed"].tree()
        parts["killed"].send(signal.SIGKILL)
        _, left = psutil.wait_procs(processes, timeout=60)
        assert not left, "its engine outlives a killed producer"
        run.until(lambda: not run.is_member("killed"), within_s, "the killed one to be lost")

        frozen, name = parts["frozen"], run.identity("frozen")
        run.until(lambda: (s := run.state) is not None and s.round is not None and name in s.round.members, within_s, "a refit")
        processes = frozen.tree()
        for process in processes:
            process.suspend()
        run.until(lambda: not run.is_member("frozen"), within_s, "the frozen one to be lost")
        known = run.frontier
        for process in processes:
            process.resume()
        # Of use again, or gone in order: an engine that was cut off in the middle of a transfer may have to start anew.
        run.until(lambda: not frozen.alive or run.holds("frozen") >= known, within_s, "the frozen one to serve or to leave")
        if frozen.alive:
            run.until(lambda: rolls_out("frozen"), within_s, "its next rollout")
            frozen.send(signal.SIGTERM)
            assert frozen.end(within_s) == 0, frozen.output
        else:
            assert frozen.process.poll() == 1 and "leaving" in frozen.output, frozen.output

        run.reaches(run.frontier + 2, within_s)
        run.stop()
        assert learner.end(within_s) == 1
        assert parts["steady"].end(within_s) == 0
        rows = [group.row for v in run.versions(run.frontier, 4) for group in v.trained().values()]
        assert sorted(rows) == list(range(len(rows)))
