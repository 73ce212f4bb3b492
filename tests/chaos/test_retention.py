"""Old topics and records go as training goes on; who stood still meanwhile joins anew."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from broker_config.clients import admin
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline
from broker_config.topics import Topics, parse
from schemas.config.kafka import KafkaConfig
from tests.brokers import Broker
from tests.chaos.test_kills import ended_on_failure, first_step, lines, processes
from tests.pipeline import SCRIPTED, new_id, start_run, wait_for
from tests.support import eventually

pytestmark = pytest.mark.timeout(600)

STEPS = 60
KEPT = ("checkpointing.save_period=2", "checkpointing.keep=2", f"grpo.max_num_steps={STEPS}")
QUICK = ("dispatch.beat_s=0.2", "dispatch.heartbeat_s=0.2", "dispatch.lease_beats=10",
         "producer.scripted={seconds_per_token: 0.05}")  # fmt: skip


def test_only_what_the_kept_checkpoints_need_is_kept_and_who_lost_its_place_joins_anew(broker: Broker, tmp_path: Path) -> None:
    run_id = new_id()
    names = Topics(run_id)
    client = make_admin(KafkaConfig(), broker.bootstrap, "tests")

    def start_of(topic: str) -> int:
        return admin.log_bounds(client, [(topic, 0)], Deadline(30))[topic, 0].start

    def end_of(topic: str) -> int:
        return admin.log_bounds(client, [(topic, 0)], Deadline(30))[topic, 0].end

    process = start_run(broker.bootstrap, run_id, tmp_path, *SCRIPTED, *KEPT, *QUICK, "producer.count=2")
    with ended_on_failure(process):
        eventually(first_step(run_id, tmp_path), Deadline(120), "the first step")
        frozen: psutil.Process = processes(process.pid, "--name producer-0")[-1]
        frozen.send_signal(signal.SIGSTOP)
        unread = end_of(names.control)
        eventually(lambda: start_of(names.control) > unread, Deadline(120), "what the frozen producer has to read is retired")
        frozen.send_signal(signal.SIGCONT)
    run = wait_for(process, broker.bootstrap, run_id, tmp_path)
    assert run.code == 0, run.output
    assert len(lines(run_id, tmp_path)) == STEPS
    left = [p.version for p in map(parse, admin.topics_of_run(client, run_id, Deadline(30))) if p and p.version is not None]
    assert min(left) >= STEPS - 4 and len(left) <= 5
    assert start_of(names.status) > 0 and start_of(names.control) > unread
    log = run.log("producer-0")
    assert "joining anew" in log
    joined = [line for line in run.log("dispatcher").splitlines() if "producer producer-0-" in line and " joined" in line]
    assert len(joined) == 2, joined
