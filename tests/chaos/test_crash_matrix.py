"""The learner is killed at every point of a step, and started again each time, while the producers live on.

What it trains in the end is what an undisturbed run trains: the same groups in the same slots, the same state to the last bit,
each step told once.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.brokers import Broker
from tests.chaos.striking.crashes import RUN, Account, Strike, chained, same_states, undisturbed
from tests.fakes.nursery import Nursery
from tests.paths import ROOT
from tests.pipeline import environment, main_job

LIFE_S = 400.0

SEALING = (Strike("dispatcher.before_seal"), Strike("dispatcher.after_seal"))
ANNOUNCING = (Strike("dispatcher.before_announce"), Strike("dispatcher.after_announce"))
TRAINING = (Strike("learner.forward"), Strike("learner.optimizer"))
SENDING = (Strike("learner.offer"), Strike("learner.send", 6), Strike("learner.sent"))
SAVING = (
    Strike("learner.checkpoint"),
    Strike("learner.before_manifest"),
    Strike("learner.after_manifest"),
    Strike("learner.after_rename"),
)
TELLING = (Strike("learner.before_commit"), Strike("learner.after_commit"))
# Topics that are gone cannot be read afterwards: what they held is read before each of these.
DELETING = (Strike("dispatcher.before_delete", 1, keep=2), Strike("dispatcher.after_delete", 1, keep=2))
ALL = (*SEALING, *ANNOUNCING, *TRAINING, *SENDING, *SAVING, *TELLING, *DELETING)
# One of each kind, the one after which most is half done.
FEW = (
    Strike("dispatcher.after_seal"),
    Strike("learner.optimizer"),
    Strike("learner.sent"),
    Strike("learner.after_commit"),
    Strike("learner.after_manifest"),
    Strike("dispatcher.after_delete", 1, keep=2),
)
OF_TWO = (
    Strike("learner.forward", rank=1),
    Strike("learner.send", 5, rank=1),
    Strike("learner.checkpoint", rank=1),
    Strike("learner.after_rename", rank=0),
)


def same(found: Account, wanted: Account, steps: int) -> None:
    same_states(found, wanted, steps)
    assert found.trained == wanted.trained


@pytest.mark.timeout(400)
def test_a_learner_that_dies_again_and_again_trains_what_an_undisturbed_one_does(
    broker: Broker, nursery: Nursery, tmp_path: Path
) -> None:
    steps = 24
    run = (*RUN, f"grpo.max_num_steps={steps}")
    wanted = undisturbed(broker.bootstrap, tmp_path / "undisturbed", nursery, *run)
    same(chained(broker.bootstrap, tmp_path / "struck", nursery, FEW, *run), wanted, steps)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("saving", ["in the background", "at once"])
def test_it_does_so_at_every_point(broker: Broker, nursery: Nursery, tmp_path: Path, saving: str) -> None:
    steps = 64
    background = "true" if saving == "in the background" else "false"
    run = (*RUN, f"grpo.max_num_steps={steps}", f"checkpointing.async_save={background}")
    wanted = undisturbed(broker.bootstrap, tmp_path / "undisturbed", nursery, *run)
    same(chained(broker.bootstrap, tmp_path / "struck", nursery, ALL, *run), wanted, steps)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_so_do_two_processes_of_which_one_dies(broker: Broker, nursery: Nursery, tmp_path: Path) -> None:
    steps = 16
    run = (*RUN, f"grpo.max_num_steps={steps}", "learner.nproc=2")
    wanted = undisturbed(broker.bootstrap, tmp_path / "undisturbed", nursery, *run, nproc=2)
    same(chained(broker.bootstrap, tmp_path / "struck", nursery, OF_TWO, *run, nproc=2), wanted, steps)


def rank_0(supervisor: int) -> psutil.Process | None:
    for process in psutil.Process(supervisor).children(recursive=True):
        if "learner" in process.cmdline() and process.environ().get("RANK") == "0":
            return process
    return None


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_a_run_on_vllm_that_was_interrupted_is_what_one_replay_of_all_of_it_gives(broker: Broker, tmp_path: Path) -> None:
    steps, chance = 24, random.Random(5)
    shorter = (f"grpo.max_num_steps={steps}", "checkpointing.save_period=4", "grpo.val_period=0", "grpo.val_at_start=false")
    with main_job(broker.bootstrap, tmp_path, *shorter) as job:
        for kill in range(3):
            job.until_trained(kill * (steps // 3) + chance.randint(1, steps // 3), LIFE_S)
            time.sleep(chance.uniform(0, 2))  # anywhere in a step
            job.until(lambda: rank_0(job.process.pid), LIFE_S, "a learner").send_signal(signal.SIGKILL)
        run = job.end()
    assert run.code == 0, run.output
    assert "restarts: learner-0 3\n" in run.output
    assert run.steps == list(range(steps))
    command = [sys.executable, "-m", "learner.replay", str(run.folder), "--step", "0", "--to", str(steps - 1)]
    env = environment(broker.bootstrap)
    replay = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIFE_S, check=False)
    assert replay.returncode == 0, replay.stdout + replay.stderr
    assert [line.split()[2] for line in replay.stdout.splitlines() if line.startswith("step ")] == ["equal"] * steps
