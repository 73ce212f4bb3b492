"""kill -9, an interrupt, a broker that goes: what died is started again and the run finishes, with every step once. Where it
may not be started again the run ends with the cause named. Nothing is left running.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from tests.brokers import Broker
from tests.own_cache import make_cache
from tests.pipeline import SCRIPTED, FinishedRun, new_id, start_run, wait_for
from tests.support import eventually

pytestmark = pytest.mark.timeout(600)


def lines(run_id: str, runs: Path) -> list[str]:
    metrics = runs / run_id / "metrics.jsonl"
    return metrics.read_text().splitlines() if metrics.exists() else []


def first_step(run_id: str, runs: Path) -> Callable[[], bool]:
    return lambda: bool(lines(run_id, runs))


def processes(supervisor: int, words: str) -> list[psutil.Process]:
    found = [p for p in psutil.Process(supervisor).children(recursive=True) if words in " ".join(p.cmdline())]
    return [p for p in found if "launch.processes.guard" not in p.cmdline()]


@contextmanager
def ended_on_failure(process: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        process.terminate()
        process.communicate(timeout=60)
        raise


def kill(supervisor: int, words: str) -> None:
    processes(supervisor, words)[-1].send_signal(signal.SIGKILL)


def steps(run: FinishedRun) -> list[float]:
    return [line["step"] for line in run.metrics()]


NO_RESTART = (
    "launch.restart.max_restarts=0",
    "launch.restart.max_producer_restarts=0",
    "launch.restart.max_broker_restarts=0",
)
STEPS = 8
FEW = (f"grpo.max_num_steps={STEPS}", "producer.scripted={seconds_per_token: 0.1}", "checkpointing.save_period=2",
       "dispatch.lease_beats=6")  # fmt: skip
LONG = ("grpo.max_num_steps=100000", "producer.scripted={seconds_per_token: 0.05}")


def test_a_killed_producer_is_started_again_and_the_run_finishes(broker: Broker, tmp_path: Path) -> None:
    run_id = new_id()
    process = start_run(broker.bootstrap, run_id, tmp_path, *SCRIPTED, *FEW, "producer.count=1")
    with ended_on_failure(process):
        eventually(first_step(run_id, tmp_path), Deadline(120), "the first step")
        kill(process.pid, "-m producer --config")
    run = wait_for(process, broker.bootstrap, run_id, tmp_path)
    assert run.code == 0, run.output
    assert steps(run) == list(range(STEPS))
    assert "died (signal SIGKILL); it will be started again in 1 s (restart 1)" in run.output
    assert "restarts: producer-0 1" in run.output


@pytest.mark.parametrize("victim", ["-m learner --config", "learner.dispatcher"])
def test_a_killed_learner_process_is_started_again_and_tells_each_step_once(broker: Broker, tmp_path: Path, victim: str) -> None:
    run_id = new_id()
    process = start_run(broker.bootstrap, run_id, tmp_path, *SCRIPTED, *FEW)
    with ended_on_failure(process):
        eventually(lambda: len(lines(run_id, tmp_path)) >= 3, Deadline(120), "a step beyond a checkpoint")
        kill(process.pid, victim)
    run = wait_for(process, broker.bootstrap, run_id, tmp_path)
    assert run.code == 0, run.output
    assert steps(run) == list(range(STEPS))
    assert "restarts: learner-0 1" in run.output
    assert run.log("learner-0").count("--- started again") == 1


def test_the_local_broker_that_the_run_started_is_started_again_when_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_CACHE", str(make_cache(tmp_path)))
    local, run_id, runs = LocalBroker(), new_id(), tmp_path / "runs"
    process = start_run("", run_id, runs, *SCRIPTED, *FEW)
    with ended_on_failure(process):
        eventually(first_step(run_id, runs), Deadline(120), "the first step")
        before = local.bootstrap
        assert local.kill()
    run = wait_for(process, "", run_id, runs)
    assert run.code == 0, run.output
    assert steps(run) == list(range(STEPS))
    assert "the broker is back" in run.output and "restarts: broker 1" in run.output
    assert local.bootstrap == before
    assert local.status().state == "stopped"


def test_a_killed_learner_that_may_not_be_started_again_ends_the_run_with_its_name(broker: Broker, tmp_path: Path) -> None:
    run_id = new_id()
    process = start_run(broker.bootstrap, run_id, tmp_path, *SCRIPTED, *LONG, *NO_RESTART)
    with ended_on_failure(process):
        eventually(first_step(run_id, tmp_path), Deadline(120), "the first step")
        kill(process.pid, "-m learner --config")
    run = wait_for(process, broker.bootstrap, run_id, tmp_path)
    assert run.code == 1, run.output
    assert "the learner ended with signal SIGKILL before the run was finished" in run.output
    assert "learner-0.log" in run.output


def test_an_interrupt_ends_the_run_in_order(broker: Broker, tmp_path: Path) -> None:
    run_id = new_id()
    process = start_run(broker.bootstrap, run_id, tmp_path, *SCRIPTED, *LONG)
    with ended_on_failure(process):
        eventually(first_step(run_id, tmp_path), Deadline(120), "the first step")
        process.send_signal(signal.SIGINT)
    run = wait_for(process, broker.bootstrap, run_id, tmp_path)
    assert run.code == 130, run.output
    assert "interrupted" in run.log("dispatcher")


def test_a_broker_of_somebody_else_that_stays_away_ends_the_run_with_its_name(
    own_broker: Callable[..., LocalBroker], tmp_path: Path
) -> None:
    local, run_id, runs = own_broker(), new_id(), tmp_path / "runs"
    bootstrap = local.start(Deadline(90))
    process = start_run(bootstrap, run_id, runs, *SCRIPTED, *LONG, "kafka.outage_timeout_s=5", "kafka.timeout_s=5")
    with ended_on_failure(process):
        eventually(first_step(run_id, runs), Deadline(120), "the first step")
        local.kill()
    run = wait_for(process, bootstrap, run_id, runs)
    assert run.code == 1, run.output
    assert "waiting for it, up to 5 s (kafka.outage_timeout_s)" in run.output
    assert f"nobody listens at {bootstrap}; the broker was away for 5 s" in run.output
