"""Old topics and records are deleted as training goes on; a producer that stood still meanwhile joins anew."""

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
from tests.chaos.striking.main_job import processes
from tests.pipeline import SCRIPTED, START_LIMIT_S, main_job
from tests.support import new_id

pytestmark = pytest.mark.timeout(600)

STEPS = 60
RETIRED_S = 180.0
KEPT = ("checkpointing.save_period=2", "checkpointing.keep=2", f"grpo.max_num_steps={STEPS}")
QUICK = ("dispatch.beat_s=0.2", "dispatch.heartbeat_s=0.2", "dispatch.lease_beats=10",
         "producer.scripted={seconds_per_token: 0.05}")  # fmt: skip


def test_only_what_the_kept_checkpoints_need_is_kept_and_a_producer_that_lost_its_place_joins_anew(
    broker: Broker, tmp_path: Path
) -> None:
    run_id = new_id()
    names = Topics(run_id)
    client = make_admin(KafkaConfig(), broker.bootstrap, "tests")

    def start_of(topic: str) -> int:
        return admin.log_bounds(client, [(topic, 0)], Deadline(30))[topic, 0].start

    def end_of(topic: str) -> int:
        return admin.log_bounds(client, [(topic, 0)], Deadline(30))[topic, 0].end

    with main_job(broker.bootstrap, tmp_path, *SCRIPTED, *KEPT, *QUICK, "producer.count=2", run_id=run_id) as job:
        job.until(lambda: "producer producer-0-" in job.log("dispatcher"), START_LIMIT_S, "producer-0 to join")
        job.until_trained(1)
        frozen: psutil.Process = processes(job, "--name producer-0")[-1]
        frozen.send_signal(signal.SIGSTOP)
        unread = end_of(names.control)
        job.until(lambda: start_of(names.control) > unread, RETIRED_S, "what the frozen producer has to read to be deleted")
        frozen.send_signal(signal.SIGCONT)
        run = job.end()
    assert run.code == 0, run.output
    assert run.steps == list(range(STEPS))
    left = [p.version for p in map(parse, admin.topics_of_run(client, run_id, Deadline(30))) if p and p.version is not None]
    assert min(left) >= STEPS - 4 and len(left) <= 5
    assert start_of(names.status) > 0 and start_of(names.control) > unread
    log = run.log("producer-0")
    assert "joining anew" in log
    joined = [line for line in run.log("dispatcher").splitlines() if "producer producer-0-" in line and " joined" in line]
    assert len(joined) == 2, joined
