"""A rank of the learner, or its dispatcher, is killed or frozen: within the deadline the learner ends as a whole and says why."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from schemas import failpoints
from schemas.records.status import Beat
from tests.brokers import Broker
from tests.chaos.striking.by_hand import ByHand, by_hand
from tests.chaos.striking.part import Part, is_frozen
from tests.chaos.striking.watched_run import START_S
from tests.fakes.nursery import Nursery
from tests.pipeline import SCRIPTED

RANK_TIMEOUT_S = 6.0
GRACE_S = 15.0
"""torchrun looks at its ranks every second; those that it ends close their clients first."""
BEAT_S = 0.2
RUN = (
    *SCRIPTED,
    "grpo.max_num_steps=100000",
    f"learner.rank_timeout_s={RANK_TIMEOUT_S}",
    f"dispatch.beat_s={BEAT_S}",
    "producer.count=1",
    "producer.scripted={seconds_per_token: 0.05}",
    "refit.phase_timeout_s=4",
    "checkpointing.save_period=100000",
)
MIDDLE = "learner.forward"
"""Where a rank is frozen: the others are in a collective with it, whose own timeout is minutes."""


def ends_as_a_whole(run: ByHand, who: str, signum: signal.Signals, patience_s: float) -> str:
    """Strike, and return all that the learner wrote. The only producer comes after `patience_s`."""
    frozen_rank = signum is signal.SIGSTOP and who.startswith("rank ")
    strike = {failpoints.VARIABLE: f"{MIDDLE}=SIGSTOP@3/{who.removeprefix('rank ')}"} if frozen_rank else {}
    learner = run.learner_of_two(env=strike)
    run.watch()
    if patience_s:
        waiting = run.until(run.beat, START_S, "the learner to wait for producers")
        run.until(lambda: beats_since(run, waiting) * BEAT_S > patience_s, 3 * patience_s, f"a wait of {patience_s:g} s")
    run.producer("steady")
    run.reaches(2, START_S)
    processes = learner.tree()
    if frozen_rank:
        run.until(lambda: any(is_frozen(process.pid) for process in processes), 60, f"{who} to be stopped")
    else:
        process_of(learner, who).send_signal(signum)
    since = time.monotonic()
    code = learner.end(RANK_TIMEOUT_S + GRACE_S)
    print(f"{who} {signum.name}: code {code} after {time.monotonic() - since:.1f} s")
    assert code in (1, 128 + signal.SIGKILL), learner.output  # of the rank that ended first
    _, left = psutil.wait_procs(processes, timeout=5)
    assert not left, [process.cmdline() for process in left]
    return learner.output


def beats_since(run: ByHand, earlier: Beat) -> int:
    newest = run.beat()
    return 0 if newest is None else newest.number - earlier.number


def process_of(learner: Part, who: str) -> psutil.Process:
    for process in learner.tree():
        command = process.cmdline()
        if who == "the dispatcher":
            if "learner.dispatcher" in command:
                return process
        elif "learner" in command and process.environ().get("RANK") == who.removeprefix("rank "):
            return process
    raise AssertionError(f"no process is {who}")


STOPPED = r".pid \d+. was stopped for 4.5 s .0.75 of learner.rank_timeout_s.; it is killed"
CASES = {
    "rank-1-killed": ("rank 1", signal.SIGKILL, r"rank\s+: 1 .*\n.*exitcode\s+: -9 .*SIGKILL"),
    "rank-1-frozen": ("rank 1", signal.SIGSTOP, f"dispatcher: a rank {STOPPED}"),
    "rank-0-frozen": ("rank 0", signal.SIGSTOP, f"dispatcher: rank 0 {STOPPED}"),
    "dispatcher-frozen": ("the dispatcher", signal.SIGSTOP, "LinkSilent: the dispatcher process stood still and was killed"),
    "rank-0-killed": ("rank 0", signal.SIGKILL, "rank 1 heard nothing from rank 0 .* or rank 0 died"),
    "dispatcher-killed": ("the dispatcher", signal.SIGKILL, "LinkClosed: the dispatcher process ended .exit code -9"),
}
NIGHTLY = {"rank-0-killed", "dispatcher-killed"}  # deaths are seen at once; what is hard is to stand still


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in CASES])
def test_a_learner_ends_as_a_whole_and_names_the_cause(broker: Broker, nursery: Nursery, tmp_path: Path, case: str) -> None:
    who, signum, cause = CASES[case]
    # A wait for producers that is longer than any collective may take harms nobody: it is made of many commands.
    patience_s = RANK_TIMEOUT_S + 2 if case == "rank-1-killed" else 0.0
    with by_hand(broker.bootstrap, tmp_path, nursery, *RUN) as run:
        output = ends_as_a_whole(run, who, signum, patience_s)
        assert re.search(cause, output), output
