"""Whole runs for tests: the main job as a person starts it, and what it left in topics and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition

from broker_config.clients import admin
from broker_config.clients.errors import data_of
from broker_config.clients.settings import make_admin, make_consumer
from broker_config.deadline import Deadline
from broker_config.locate import ENVIRONMENT
from broker_config.topics import Topics
from schemas.config.kafka import KafkaConfig
from schemas.records import seal as seals
from schemas.records.group import TrajectoryGroup, decode
from schemas.records.headers import as_mapping
from schemas.records.seal import Seal
from tests.paths import ROOT

RUN_LIMIT_S = 400.0
WEIR_LIMIT_S = 200.0

SMALL = ("grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=4", "learner.train_micro_batch_size=4",
         "logger.tensorboard=false")  # fmt: skip
SCRIPTED = (*SMALL, "producer.engine=scripted", "grpo.max_num_steps=4", "data.validation=null", "grpo.val_period=0",
            "grpo.val_at_start=false", "grpo.val_at_end=false")  # fmt: skip


def new_id() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended, its exit code and what it printed."""

    run_id: str
    bootstrap: str
    folder: Path
    code: int
    output: str

    def metrics(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def version_topic(self, version: int) -> tuple[dict[int, TrajectoryGroup], Seal]:
        """Groups by offset, and the first seal, of one version's topic."""
        records = read_topic(self.bootstrap, Topics(self.run_id).trajectories(version))
        groups = {r.offset(): decode(r.value()) for r in records if as_mapping(r.headers())["kind"] != b"seal"}
        sealed = [r.value() for r in records if as_mapping(r.headers())["kind"] == b"seal"]
        some = next(iter(groups.values()))
        slots = 1 + max(group.request.slot for group in groups.values())
        return groups, seals.decode(sealed[0], run=some.run, version=version, prompts_per_step=slots)


def read_topic(bootstrap: str, topic: str) -> list[Any]:
    """All records of partition 0, in order."""
    client = make_admin(KafkaConfig(), bootstrap, "tests")
    end = admin.log_bounds(client, [(topic, 0)], Deadline(30))[topic, 0].end
    consumer = make_consumer(KafkaConfig(), bootstrap, "tests", "tests")
    consumer.assign([TopicPartition(topic, 0, 0)])
    records: list[Any] = []
    deadline = Deadline(30)
    while end and (not records or records[-1].offset() + 1 < end):
        message = data_of(consumer.poll(0.5))
        if message is None:
            deadline.check(f"records of {topic}")
        else:
            records.append(message)
    consumer.close()
    return records


def environment(bootstrap: str) -> dict[str, str]:
    return {**os.environ, ENVIRONMENT: bootstrap, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def start_run(bootstrap: str, run_id: str, runs: Path, *overrides: str, config: str = "launch/configs/tiny.yaml") -> Any:
    """`launch/run_cluster.sh` without its set-up."""
    command = [sys.executable, "-m", "launch", config, f"run.id={run_id}", f"run.dir={runs}", *overrides]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(bootstrap), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run_to_end(bootstrap: str, run_id: str, runs: Path, *overrides: str) -> FinishedRun:
    process = start_run(bootstrap, run_id, runs, *overrides)
    return wait_for(process, bootstrap, run_id, runs)


def wait_for(process: Any, bootstrap: str, run_id: str, runs: Path) -> FinishedRun:
    try:
        output, _ = process.communicate(timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=60)
        raise AssertionError(f"run {run_id} did not end within {RUN_LIMIT_S:g} s; logs in {runs / run_id}\n{output}") from None
    return FinishedRun(run_id, bootstrap, runs / run_id, process.returncode, output)


def weir(bootstrap: str, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command `weir`, which must end with `code` and without a traceback."""
    script = "import sys; from launch.cli import main; sys.exit(main())"
    env = {**environment(bootstrap), "NO_COLOR": "1"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=WEIR_LIMIT_S, check=False)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done
