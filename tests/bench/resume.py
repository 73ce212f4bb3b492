"""How soon a learner that died trains again, and what training steps a second time costs.

    .venv/bin/python -m tests.bench.resume [--versions 20] [--repeats 3] [--out FILE]

The tiny run with scripted producers, which live on. A cold start is `python -m learner` on a new run, to its first optimizer
step. The learner is then killed (SIGKILL) after some versions, all of them after its only checkpoint, and started again at once:
to its next optimizer step, which is one that it made before. Steps of the catch-up and of a replay are set against what the same
steps took to train the first time. Everything runs on the same machine at the same time as the producers.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from schemas import failpoints
from tests.bench.figures import tell
from tests.chaos.striking.by_hand import LEARNER, by_hand
from tests.chaos.striking.crashes import CrashingRun
from tests.chaos.striking.part import END_S, Part
from tests.chaos.striking.watched_run import START_S
from tests.fakes.nursery import Nursery
from tests.paths import ROOT
from tests.pipeline import CONFIG, environment
from tests.support import eventually

PRODUCERS = 2
BROKER_S = 120.0
STEP = "learner.optimizer"
RUN = (
    "producer.engine=scripted",
    "producer.scripted={seconds_per_token: 0.01}",
    f"producer.count={PRODUCERS}",
    "data.validation=null",
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "grpo.max_num_steps=100000",
    "checkpointing.save_period=100000",
    "logger.tensorboard=false",
)
_LINE = re.compile(r"step=(\d+) .* total_s=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds by the clock, and of the processors for the learner's processes, which other programs do not stretch."""

    clock: float
    cpu: float


class TimedRun(CrashingRun):
    """Its learner is a program of its own, as people start it, and leaves a mark at its first optimizer step."""

    def timed(self, *, resume: bool) -> tuple[Part, Took]:
        """The learner, and what it took from its start to that step."""
        mark = self.folder / f"stepped-{len(self.parts)}" / STEP
        mark.parent.mkdir()
        # SIGCONT does nothing to a process that runs: only the mark is wanted.
        self._arms = {failpoints.VARIABLE: f"{STEP}=SIGCONT", failpoints.ONCE: str(mark.parent)}
        command = ["-m", "learner", "--config", CONFIG, *(["--resume"] if resume else []), *self.overrides]
        began = time.time()
        learner = self._start(LEARNER, lambda log: self._program(command, log))
        self._arms = {}
        self.until(mark.exists, START_S, "the first optimizer step")
        cpu = sum(sum(process.cpu_times()[:2]) for process in learner.tree())
        return learner, Took(mark.stat().st_mtime - began, cpu)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.resume", description=__doc__)
    parser.add_argument("--versions", type=int, default=20, help="trained before the learner is killed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures as JSON here too")
    args = parser.parse_args()
    nursery = Nursery(environment(""))
    try:
        with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder, _broker(Path(folder) / "broker") as bootstrap:
            rounds = [_round(bootstrap, Path(folder) / f"run-{n}", nursery, args.versions) for n in range(args.repeats)]
    finally:
        nursery.close()
    figures = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
    for unit in ("s", "CPU s"):
        ratios = [
            found[f"kill to the next optimizer step, {unit}"] / found[f"cold start to the first optimizer step, {unit}"]
            for found in rounds
        ]
        figures[f"next step after a kill / cold start, {unit}"] = statistics.median(ratios)
    tell(figures, args.out)
    return 0


@contextmanager
def _broker(root: Path) -> Iterator[str]:
    broker = LocalBroker(root)
    try:
        yield broker.start(Deadline(BROKER_S))
    finally:
        broker.stop(Deadline(BROKER_S))


def _round(bootstrap: str, folder: Path, nursery: Nursery, versions: int) -> dict[str, float]:
    with by_hand(bootstrap, folder, nursery, *RUN, kind=TimedRun) as run:
        producers = [run.producer(f"producer-{n}") for n in range(PRODUCERS)]
        eventually(lambda: all("engine ready" in part.output for part in producers), START_S, "the producers to be ready")
        learner, cold = run.timed(resume=False)
        run.watch()
        run.reaches(versions, START_S)
        learner.awaited = True
        learner.send(signal.SIGKILL)
        learner.end()
        learner, warm = run.timed(resume=True)
        run.reaches(run.frontier + 2, START_S)
        first = [json.loads(line) for line in (run.run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        steps = range(1, versions - 1)  # the first one warms up, the last one may have died before its line
        trained = statistics.median(first[step]["timing/train/policy_training"] for step in steps)
        again = {int(match[1]): float(match[2]) for match in _LINE.finditer(learner.output)}
        caught_up = statistics.median(again[step] for step in steps)
        run.stop()
        learner.end()
        for part in producers:
            part.end()
        replayed = _replay(run, steps)
    return {
        "cold start to the first optimizer step, s": cold.clock,
        "kill to the next optimizer step, s": warm.clock,
        "cold start to the first optimizer step, CPU s": cold.cpu,
        "kill to the next optimizer step, CPU s": warm.cpu,
        "training of a step, s": trained,
        "catch-up of a step, s": caught_up,
        "replay of a step, s": replayed,
        "catch-up / training": caught_up / trained,
        "replay / training": replayed / trained,
    }


def _replay(run: TimedRun, steps: Sequence[int]) -> float:
    """Median seconds between the lines of two steps."""
    run.write_config()
    command = [sys.executable, "-m", "learner.replay", str(run.run_folder), "--step", "0", "--to", str(steps[-1])]
    times = []
    with subprocess.Popen(command, cwd=ROOT, env=environment(run.bootstrap), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        times = [(line, time.monotonic()) for line in process.stdout]
        code = process.wait(END_S)
    assert code == 0, "".join(line for line, _ in times)
    stepped = [at for line, at in times if line.startswith("step ")]
    return statistics.median(later - earlier for earlier, later in pairwise(stepped))


if __name__ == "__main__":
    sys.exit(main())
