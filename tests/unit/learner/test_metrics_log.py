"""Where a step's metrics go: each step's line once, whatever died in between."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from learner.metrics_log import MetricsLog
from schemas.config.learner import LoggerConfig
from schemas.errors import FileError

PLAIN = LoggerConfig(tensorboard=False)


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def write(folder: Path, *steps: int, reward: float = 0.5, logger: LoggerConfig = PLAIN) -> None:
    metrics_log = MetricsLog(folder, logger, "run-1")
    for step in steps:
        metrics_log.step(step, {"train/reward": reward})
    metrics_log.close()


def test_a_step_is_one_line_that_can_be_read_at_once(tmp_path: Path) -> None:
    metrics_log = MetricsLog(tmp_path, PLAIN, "run-1")
    metrics_log.step(0, {"train/reward": 0.25, "train/loss": -1e-9})
    assert lines(tmp_path) == [{"step": 0, "train/reward": 0.25, "train/loss": -1e-9}]
    metrics_log.step(1, {"train/reward": 0.5})
    assert [line["step"] for line in lines(tmp_path)] == [0, 1]
    metrics_log.close()


def test_a_step_trained_again_has_no_second_line(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2, 2, 1)
    write(tmp_path, 1, 2, 3, reward=0.75)
    assert [(line["step"], line["train/reward"]) for line in lines(tmp_path)] == [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.75)]


@pytest.mark.parametrize("torn", ['{"step": 2', '{"step": 2, "train/reward": 0.5}', "{", '{"step": 2, "é'])
def test_a_torn_last_line_is_cut_off_and_its_step_written_again(tmp_path: Path, torn: str) -> None:
    write(tmp_path, 0, 1)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(torn)
    write(tmp_path, 1, 2, 3)
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("before", ["", '{"step": 0'])
def test_a_file_without_a_whole_line_has_no_step(tmp_path: Path, before: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(before, encoding="utf-8")
    write(tmp_path, 0)
    assert [line["step"] for line in lines(tmp_path)] == [0]


def test_validations_have_a_file_of_their_own(tmp_path: Path) -> None:
    metrics_log = MetricsLog(tmp_path, PLAIN, "run-1")
    metrics_log.validation(0, {"validation/accuracy": 0.25})
    metrics_log.step(0, {"train/reward": 0.5})
    metrics_log.validation(5, {"validation/accuracy": 0.75})
    metrics_log.close()
    assert lines(tmp_path, "validation.jsonl") == [
        {"version": 0, "validation/accuracy": 0.25},
        {"version": 5, "validation/accuracy": 0.75},
    ]
    assert [line["step"] for line in lines(tmp_path)] == [0]


def test_without_other_sinks_only_the_files_are_made(tmp_path: Path) -> None:
    write(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_tensorboard_has_every_metric_at_its_step(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path, 0, 1, 1, logger=LoggerConfig(tensorboard=True))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/reward")] == [(0, 0.5), (1, 0.5)]


@dataclass
class Wandb:
    """Stands for the package and for its run: notes what it is told."""

    told: list[tuple[str, Any]] = field(default_factory=list)

    def init(self, **how: Any) -> Wandb:
        self.told.append(("init", how))
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.told.append(("log", (step, metrics)))

    def finish(self) -> None:
        self.told.append(("finish", None))


def test_weights_and_biases_goes_on_with_the_run_of_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    write(tmp_path, 0, 1, 1, logger=LoggerConfig(tensorboard=False, wandb=True, wandb_project="mine"))
    assert wandb.told == [
        ("init", {"project": "mine", "name": "run-1", "id": "run-1", "resume": "allow", "dir": str(tmp_path)}),
        ("log", (0, {"train/reward": 0.5})),
        ("log", (1, {"train/reward": 0.5})),
        ("finish", None),
    ]


def test_steps_that_are_trained_anew_get_new_lines_and_the_old_ones_are_set_aside(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2, 3)
    metrics_log = MetricsLog(tmp_path, PLAIN, "run-1")
    for version in (2, 3):
        metrics_log.validation(version, {"validation/accuracy": 0.5})
    metrics_log.cut(2)
    assert not metrics_log.has(2)
    metrics_log.step(2, {"train/reward": 0.75})
    metrics_log.close()
    assert [(line["step"], line["train/reward"]) for line in lines(tmp_path)] == [(0, 0.5), (1, 0.5), (2, 0.75)]
    assert [line["step"] for line in lines(tmp_path, "metrics.jsonl.lost.1")] == [2, 3]
    assert [line["version"] for line in lines(tmp_path, "validation.jsonl")] == [2]  # of weights that are still the run's
    assert [line["version"] for line in lines(tmp_path, "validation.jsonl.lost.1")] == [3]


def test_a_full_disk_is_one_error_with_the_step_and_the_room(tmp_path: Path) -> None:
    metrics_log = MetricsLog(tmp_path, PLAIN, "run-1")
    metrics_log.step(0, {"train/reward": 0.5})
    metrics_log._lines.close()
    metrics_log._lines = Path("/dev/full").open("a", encoding="utf-8")  # noqa: SIM115 - closing it would write again
    says = rf"the metrics of step 1 were not written: .*No space left on device; {tmp_path} has \d+ of \d+ MiB free"
    with pytest.raises(FileError, match=says):
        metrics_log.step(1, {"train/reward": 0.5})
    assert [line["step"] for line in lines(tmp_path)] == [0]
