"""Broker, learner and producers are killed together, again and again, and started again; then the books are settled.

| loop | consumes | produces | waits for | unblocked by | deadline |
|---|---|---|---|---|---|
| one life | a checkpoint, the log | versions | a moment of this life | its time is up | `START_S` for each wait |
| the end | the log, what was acknowledged to producers | a ledger, a replay | the processes' end | `stop` | `END_S`, `REPLAY_S` |
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_config.clients import admin
from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from learner.checkpoint.folders import latest
from tests.chaos.striking.by_hand import by_hand
from tests.chaos.striking.crashes import PRODUCERS, RUN, CrashingRun
from tests.chaos.striking.ledger import Ledger, read_acknowledged, settle, steps_of
from tests.chaos.striking.part import Part
from tests.chaos.striking.watched_run import START_S
from tests.fakes.nursery import Nursery
from tests.fakes.producer.witness import VARIABLE
from tests.paths import ROOT
from tests.pipeline import CONFIG, environment

BROKER_S = 120.0
REPLAY_S = 400.0
EARLY_S = 6.0
"""Within this after a start some kills come: while the broker, the claim, the load or the first versions are under way."""
LATE_S = 3.0
"""Within this after a new version the others come."""
EARLY_SHARE = 0.3
MORE_VERSIONS = 3
OVERRIDES = (*RUN, "grpo.max_num_steps=100000", "dispatch.lease_beats=6")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Books:
    """`wrong`: what does not add up, one line each."""

    ledger: Ledger
    wrong: list[str]


class MortalRun(CrashingRun):
    """Everything of it dies at once. Its producers write down what was acknowledged to them."""

    @property
    def witnessed(self) -> Path:
        return self.folder / "acknowledged"

    def witness(self, name: str) -> Part:
        arguments = ["--config", CONFIG, "--name", name, *self.overrides]
        self.witnessed.mkdir(exist_ok=True)
        env = self._env({VARIABLE: str(self.witnessed / f"{name}.{len(self.parts)}")})
        return self._start(name, lambda log: self._nursery.start("tests.fakes.producer.witness", arguments, env, log))

    def watch(self, within_s: float = START_S) -> None:
        """Returns when all is read that was there: a frontier of before is known."""
        super().watch(within_s)
        assert self._reader is not None
        control, reader = (self.topics.control, 0), self._reader
        end = admin.log_bounds(self._client, [control], Deadline(within_s))[control].end
        self.until(lambda: reader.positions().get(control, 0) >= end, within_s, "control to be read")

    def saved(self) -> bool:
        return latest(self.run_folder / "checkpoints") is not None


def live_and_die(folder: Path, nursery: Nursery, kills: int, seed: int, say: Say) -> Books:
    """The whole of it. `folder` gets everything; the broker's data are left there.

    Raises:
        AssertionError, RuntimeError: a process died that was not killed, or a life did not get where it should.
    """
    chance = random.Random(seed)
    with (
        _broker(folder / "broker") as broker,
        by_hand(broker.start(Deadline(BROKER_S)), folder / "run", nursery, *OVERRIDES, kind=MortalRun) as run,
    ):
        for life in range(kills):
            parts = _begin(run, resume=life > 0)
            moment = _let_live(run, chance, first=life == 0)
            _kill(broker, parts, chance)
            run.unwatch()
            for part in parts:
                assert part.end() == -signal.SIGKILL, part.output[-3000:]
            say(f"kill {life + 1} of {kills}: {moment}")
            assert broker.start(Deadline(BROKER_S)) == run.bootstrap
        return _close_books(run, _begin(run, resume=kills > 0), say)


@contextmanager
def _broker(root: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker(root)
    try:
        yield broker
    finally:
        broker.stop(Deadline(BROKER_S))


def _begin(run: MortalRun, *, resume: bool) -> list[Part]:
    return [run.learner(resume=resume), *(run.witness(name) for name in PRODUCERS)]


def _let_live(run: MortalRun, chance: random.Random, *, first: bool) -> str:
    """Wait for the moment to strike; says which it is."""
    began = time.monotonic()
    early, late = chance.uniform(0, EARLY_S), chance.uniform(0, LATE_S)
    if chance.random() < EARLY_SHARE:
        if first:  # without a checkpoint there is nothing to go on with
            run.until(run.saved, START_S, "the first checkpoint")
        time.sleep(early)  # the moment itself is what is drawn: whatever goes on then is struck
        return f"{time.monotonic() - began:.1f} s after the start"
    run.watch()
    known = run.frontier
    run.reaches(known + 1, START_S)
    time.sleep(late)  # likewise
    return f"{time.monotonic() - began:.1f} s after the start, version {run.frontier} announced, {known} at the start"


def _kill(broker: LocalBroker, parts: list[Part], chance: random.Random) -> None:
    """All of them at one moment, as if the power failed: on a busy machine this process may lose the processor between two kills,
    so everybody is stopped first, in some order. Nobody then sees another one's death, and ends because of it."""
    assert broker.pid is not None
    pids = [broker.pid, *(process.pid for part in parts for process in part.tree())]
    chance.shuffle(pids)
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                continue  # a dispatcher dies with its rank 0
    broker.kill()  # waits until it is gone


def _close_books(run: MortalRun, parts: list[Part], say: Say) -> Books:
    run.watch()
    run.reaches(run.frontier + MORE_VERSIONS, START_S)
    # One that comes after the stop would wait for a learner that resumes.
    run.until(lambda: all(run.is_member(name) for name in PRODUCERS), START_S, "both producers to join")
    run.stop()
    learner, *producers = parts
    assert learner.end() == 1 and "stopped by a test" in learner.output, learner.output[-3000:]
    for producer in producers:
        assert producer.end() == 0 and "the run has ended: stopped by a test" in producer.output, producer.output[-3000:]
    lines = steps_of(run.run_folder)
    log = run.log
    try:
        ledger = settle(log, read_acknowledged(sorted(run.witnessed.iterdir())), len(lines))
    finally:
        log.close()
    wrong = [f"lost: {line}" for line in ledger.lost] + [f"twice: {line}" for line in ledger.twice]
    if lines != list(range(len(lines))):
        wrong.append(f"steps in metrics.jsonl: {lines}")
    differing = _replay(run, len(lines) - 1)
    say(
        f"{len(lines)} versions; trained once more in one go, from the first checkpoint and the seals: {differing or 'all equal'}"
    )
    return Books(ledger, [*wrong, *([differing] if differing else [])])


def _replay(run: MortalRun, last: int) -> str:
    """What is different when all steps are trained in one go; empty if nothing is. A batch trained twice would be."""
    run.write_config()
    command = [sys.executable, "-m", "learner.replay", str(run.run_folder), "--step", "0", "--to", str(last)]
    env = environment(run.bootstrap)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=REPLAY_S, check=False)
    equal = sum(" equal " in line for line in done.stdout.splitlines() if line.startswith("step "))
    if done.returncode == 0 and equal == last + 1:
        return ""
    return (
        f"replay ended with code {done.returncode}, {equal} of {last + 1} steps equal\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
