"""What the processes of a run are, on whatever machine they are placed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from broker_config.locate import ENVIRONMENT
from launch.processes.specs import Placement, learner_spec, model_spec, producer_specs
from schemas.config.config import Config
from schemas.config.file import build
from schemas.config.model import ModelConfig
from tests.fakes.records.runs import raw_config

LOGS = Path("/runs/r/logs")


def run(**changes: Any) -> Config:
    return build(raw_config(**changes))


def placement(environ: Mapping[str, str] | None = None, *, cores: int = 8) -> Placement:
    return Placement("/venv/python", environ or {}, cores, "broker:9092", Path("runs/r/config.yaml"), LOGS)


def test_every_process_has_the_runs_config_the_broker_and_a_log_of_its_own() -> None:
    config = run(producer={"count": 2}, launch={"stop_timeout_s": 7})
    at = placement({"HOME": "/home/me"})
    specs = [learner_spec(config, at, resume=False), *producer_specs(config, at)]
    assert [spec.name for spec in specs] == ["learner-0", "producer-0", "producer-1"]
    for spec in specs:
        assert spec.command[0] == "/venv/python" and "runs/r/config.yaml" in spec.command
        assert {ENVIRONMENT: "broker:9092", "HOME": "/home/me", "PYTHONUNBUFFERED": "1"}.items() <= spec.env.items()
        assert (spec.log, spec.grace_s) == (LOGS / f"{spec.name}.log", 7)


def test_a_producer_is_started_under_the_name_of_its_process() -> None:
    _, second = producer_specs(run(producer={"count": 2}), placement())
    assert second.command[1:3] == ["-m", "producer"]
    assert second.command[-2:] == ["--name", "producer-1"]


def test_the_learner_has_a_process_for_each_rank_and_resumes_when_asked_to() -> None:
    config = run(learner={"nproc": 2})
    first = learner_spec(config, placement(), resume=False)
    assert first.command[first.command.index("--nproc-per-node") + 1] == "2"
    assert "--resume" not in first.command
    assert learner_spec(config, placement(), resume=True).command == [*first.command, "--resume"]
    assert learner_spec(config, placement(), resume=True, accept_loss=True).command == [
        *first.command,
        "--resume",
        "--accept-loss",
    ]


@pytest.mark.parametrize(
    ("learner", "environ", "threads"),
    [
        ({}, {}, "2"),  # eight cores for two ranks and two producers
        ({"threads": 3}, {}, "3"),
        ({}, {"OMP_NUM_THREADS": "5"}, "5"),
        ({"threads": 3}, {"OMP_NUM_THREADS": "5"}, "3"),
    ],
)
def test_the_learners_threads_are_those_of_the_config_of_the_environment_or_its_share_of_the_cores(
    learner: dict[str, int], environ: dict[str, str], threads: str
) -> None:
    config = run(learner={"nproc": 2, **learner}, producer={"count": 2})
    assert learner_spec(config, placement(environ), resume=False).env["OMP_NUM_THREADS"] == threads
    for spec in producer_specs(config, placement(environ)):
        assert spec.env.get("OMP_NUM_THREADS") == environ.get("OMP_NUM_THREADS")


def test_a_learner_has_a_thread_even_where_cores_are_few() -> None:
    config = run(producer={"count": 4})
    assert learner_spec(config, placement(cores=2), resume=False).env["OMP_NUM_THREADS"] == "1"


def test_a_model_is_made_with_one_thread_whatever_the_environment_says() -> None:
    spec = model_spec(ModelConfig(path="m", build="tiny"), "tiny", "/venv/python", {"OMP_NUM_THREADS": "8"}, Path("m.log"))
    assert list(spec.command) == ["/venv/python", "-m", "launch.models", "tiny", "m"]
    assert (spec.env["OMP_NUM_THREADS"], spec.env["MKL_NUM_THREADS"]) == ("1", "1")
