"""kill -9, an interrupt, a broker that goes: the run ends with the cause named, and nothing is left running."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from broker_config.deadline import Deadline
from broker_config.local_broker import LocalBroker
from tests.brokers import Broker
from tests.pipeline import SCRIPTED, new_id, start_run, wait_for
from tests.support import eventually

pytestmark = pytest.mark.timeout(600)


def first_step(run_id: str, runs: Path) -> Callable[[], bool]:
    return lambda: (runs / run_id / "metrics.jsonl").exists() and bool((runs / run_id / "metrics.jsonl").read_text())


def processes(supervisor: int, words: str) -> list[psutil.Process]:
    found = [p for p in psutil.Process(supervisor).children(recursive=True) if words in " ".join(p.cmdline())]
    return [p for p in found if "launch.guard" not in p.cmdline()]


@contextmanager
def ended_on_failure(process: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        process.terminate()
        process.communicate(timeout=60)
        raise


LONG = ("grpo.max_num_steps=100000", "producer.scripted={seconds_per_token: 0.05}")


@pytest.mark.parametrize("victim", ["-m learner --config", "learner.dispatcher"])
def test_a_killed_learner_process_ends_the_run_with_its_name(broker: Broker, tmp_path: Path, victim: str) -> None:
    run_id = new_id()
    process = start_run(broker.bootstrap, run_id, tmp_path, *SCRIPTED, *LONG)
    with ended_on_failure(process):
        eventually(first_step(run_id, tmp_path), Deadline(120), "the first step")
        processes(process.pid, victim)[-1].send_signal(signal.SIGKILL)
    run = wait_for(process, broker.bootstrap, run_id, tmp_path)
    assert run.code == 1, run.output
    assert "learner-0" in run.output


def test_an_interrupt_ends_the_run_in_order(broker: Broker, tmp_path: Path) -> None:
    run_id = new_id()
    process = start_run(broker.bootstrap, run_id, tmp_path, *SCRIPTED, *LONG)
    with ended_on_failure(process):
        eventually(first_step(run_id, tmp_path), Deadline(120), "the first step")
        process.send_signal(signal.SIGINT)
    run = wait_for(process, broker.bootstrap, run_id, tmp_path)
    assert run.code == 130, run.output
    assert "interrupted" in run.log("dispatcher")


def test_a_broker_that_dies_ends_the_run_with_its_name(own_broker: Callable[..., LocalBroker], tmp_path: Path) -> None:
    local, run_id, runs = own_broker(), new_id(), tmp_path / "runs"
    bootstrap = local.start(Deadline(90))
    process = start_run(bootstrap, run_id, runs, *SCRIPTED, *LONG, "kafka.outage_timeout_s=5", "kafka.timeout_s=5")
    with ended_on_failure(process):
        eventually(first_step(run_id, runs), Deadline(120), "the first step")
        local.kill()
    run = wait_for(process, bootstrap, run_id, runs)
    assert run.code == 1, run.output
    assert "broker" in run.output
