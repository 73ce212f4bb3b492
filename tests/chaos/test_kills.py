"""kill -9, an interrupt, a broker that dies: whatever died is started again and the run finishes, with every step once. Where it
may not be started again, the run ends and names the cause. Nothing is left running.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from tests.brokers import Broker
from tests.chaos.striking.main_job import kill
from tests.own_cache import make_cache
from tests.pipeline import SCRIPTED, main_job

pytestmark = pytest.mark.timeout(600)

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
    with main_job(broker.bootstrap, tmp_path, *SCRIPTED, *FEW, "producer.count=1") as job:
        job.until_trained(1)
        kill(job, "-m producer --config")
        run = job.end()
    assert run.code == 0, run.output
    assert run.steps == list(range(STEPS))
    assert "producer-0 died (signal SIGKILL); it will be started again in 1 s (restart 1)" in run.output
    assert "restarts: producer-0 1\n" in run.output


@pytest.mark.parametrize(
    ("victim", "cause"),
    [("-m learner --config", "signal SIGKILL"), ("learner.dispatcher", "exit code 1")],
    ids=["learner", "dispatcher"],
)
def test_a_killed_process_of_the_learner_is_started_again_and_each_step_is_recorded_once(
    broker: Broker, tmp_path: Path, victim: str, cause: str
) -> None:
    with main_job(broker.bootstrap, tmp_path, *SCRIPTED, *FEW) as job:
        job.until_trained(3)  # beyond a checkpoint
        kill(job, victim)
        run = job.end()
    assert run.code == 0, run.output
    assert run.steps == list(range(STEPS))
    assert f"learner-0 died ({cause}); it will be started again in 1 s (restart 1)" in run.output
    assert "restarts: learner-0 1\n" in run.output
    assert run.log("learner-0").count("--- started again") == 1


def test_the_local_broker_that_the_run_started_is_started_again_when_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_CACHE", str(make_cache(tmp_path)))
    local = LocalBroker()
    with main_job("", tmp_path / "runs", *SCRIPTED, *FEW) as job:
        job.until_trained(1)
        before = local.bootstrap
        assert local.kill()
        run = job.end()
    assert run.code == 0, run.output
    assert run.steps == list(range(STEPS))
    assert "the broker is back" in run.output and "restarts: broker 1\n" in run.output
    assert local.bootstrap == before
    assert local.status().state == "stopped"


def test_a_killed_learner_that_may_not_be_started_again_ends_the_run_with_its_name(broker: Broker, tmp_path: Path) -> None:
    with main_job(broker.bootstrap, tmp_path, *SCRIPTED, *LONG, *NO_RESTART) as job:
        job.until_trained(1)
        kill(job, "-m learner --config")
        run = job.end()
    assert run.code == 1, run.output
    assert "FAILED: the learner ended with signal SIGKILL before the run was finished" in run.output
    assert "learner-0.log" in run.output


def test_an_interrupt_ends_the_run_in_order(broker: Broker, tmp_path: Path) -> None:
    with main_job(broker.bootstrap, tmp_path, *SCRIPTED, *LONG) as job:
        job.until_trained(1)
        job.process.send_signal(signal.SIGINT)
        run = job.end()
    assert run.code == 130, run.output
    assert f"run {run.run_id} stopped: interrupted by SIGINT" in run.output
    assert (run.stop.reason, run.stop.resumable, run.stop.finished) == ("interrupted by SIGTERM", True, False)


def test_a_broker_of_somebody_else_that_stays_away_ends_the_run_with_its_name(
    own_broker: Callable[..., LocalBroker], tmp_path: Path
) -> None:
    local = own_broker()
    bootstrap = local.start(Deadline(90))
    with main_job(bootstrap, tmp_path / "runs", *SCRIPTED, *LONG, "kafka.outage_timeout_s=5", "kafka.timeout_s=5") as job:
        job.until_trained(1)
        assert local.kill()
        run = job.end()
    assert run.code == 1, run.output
    assert "waiting for it, up to 5 s (kafka.outage_timeout_s)" in run.output
    assert f"nobody listens at {bootstrap}; the broker was away for 5 s" in run.output
