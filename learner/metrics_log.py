"""A step's metrics on this machine: `metrics.jsonl`, TensorBoard, Weights & Biases.

Invariant: each of them gets a step once; a step that an earlier incarnation has written is left out.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from schemas.config.learner import LoggerConfig
from schemas.disk import file_errors, write_whole

log = logging.getLogger(__name__)


class MetricsLog:
    """Rank 0 only. `folder`: the run's.

    Raises:
        FileError: (all methods) the disk is full, or the folder cannot be written.
    """

    def __init__(self, folder: Path, logger: LoggerConfig, run_id: str) -> None:
        self._folder = folder
        self._logger = logger
        self._run_id = run_id
        with file_errors("the metrics cannot be written", folder):
            self._last = _last_step(folder / "metrics.jsonl")
            folder.mkdir(parents=True, exist_ok=True)  # a learner that is started by hand makes its run's folder
            self._lines = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        self._tensorboard: Any = None
        self._wandb: Any = None

    def has(self, step: int) -> bool:
        """Whether the step has its line, from this incarnation or an earlier one."""
        return step <= self._last

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a trained version, by name."""
        if self.has(step):
            return
        self._last = step
        with file_errors(f"the metrics of step {step} were not written", self._folder):
            self._lines.write(line_of(step, metrics))
            self._lines.flush()
            self._draw(step, metrics)
        self._send(step, metrics)

    def cut(self, step: int) -> None:
        """Move the lines of steps from `step` on, and of validations of their weights, to `<name>.lost.<n>`.

        For steps whose data was lost and that are trained anew on other data.
        """
        with file_errors(f"the lines of steps from {step} on were not set aside", self._folder):
            self._lines.close()
            _set_aside(self._folder / "metrics.jsonl", "step", step)
            _set_aside(self._folder / "validation.jsonl", "version", step + 1)
            self._last = min(self._last, step - 1)
            self._lines = (self._folder / "metrics.jsonl").open("a", encoding="utf-8")

    def validation(self, version: int, metrics: Mapping[str, float]) -> None:
        """Write a line to `validation.jsonl` for a validated version."""
        with file_errors(f"the validation of version {version} was not written", self._folder):
            with (self._folder / "validation.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"version": version, **metrics}) + "\n")
            self._draw(version, metrics)
        self._send(version, metrics)

    def close(self) -> None:
        """Write what is left and close the files."""
        with file_errors("the last metrics were not written", self._folder):
            self._lines.close()
            if self._tensorboard is not None:
                self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _draw(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._logger.tensorboard:
            if self._tensorboard is None:
                from torch.utils.tensorboard import SummaryWriter  # a second to import: only when there is something to write

                self._tensorboard = SummaryWriter(str(self._folder / "tensorboard"))
            for name, value in metrics.items():
                self._tensorboard.add_scalar(name, value, step)

    def _send(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._logger.wandb:
            if self._wandb is None:
                import wandb  # an optional package

                project = self._logger.wandb_project or "weir"
                self._wandb = wandb.init(
                    project=project, name=self._run_id, id=self._run_id, resume="allow", dir=str(self._folder)
                )
            self._wandb.log(dict(metrics), step=step)


def line_of(step: int, metrics: Mapping[str, float]) -> str:
    """A step's line in `metrics.jsonl`."""
    return json.dumps({"step": step, **metrics}) + "\n"


def _set_aside(path: Path, key: str, first: int) -> None:
    """Move the lines whose `key` is `first` or more to their own file."""
    if not path.exists():
        return
    kept: list[str] = []
    lost: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        torn = not line.endswith("\n")
        (lost if torn or json.loads(line)[key] >= first else kept).append(line)
    if not lost:
        return
    aside = next(p for n in count(1) if not (p := path.with_name(f"{path.name}.lost.{n}")).exists())
    aside.write_text("".join(lost), encoding="utf-8")
    write_whole(path, "".join(kept))


def _last_step(path: Path) -> int:
    """The last step that has a line, or -1. A torn last line (a crash while writing) is cut off."""
    if not path.exists():
        return -1
    whole = path.read_text(encoding="utf-8")
    kept = whole[: whole.rfind("\n") + 1]
    if kept != whole:
        os.truncate(path, len(kept.encode()))
    lines = kept.splitlines()
    return int(json.loads(lines[-1])["step"]) if lines else -1
