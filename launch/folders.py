"""A run's folder: making it, finding it, and where everything is in it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from launch.observe.formats import short_path
from launch.observe.logtail import tail
from learner.checkpoint import folders
from schemas.config.config import Config
from schemas.errors import ConfigError, Problem
from schemas.identity import LATEST


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`<run.dir>/<run id>/`."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def validation(self) -> Path:
        return self.path / "validation.jsonl"

    @property
    def checkpoints(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        return [folder for folder, _ in folders.whole(self.path / "checkpoints")]

    @property
    def exports(self) -> list[Path]:
        """Exported Hugging Face checkpoints, oldest first."""
        return sorted(p for p in self.path.glob("hf/step_*") if (p / "config.json").is_file())


def last_validation(path: Path) -> float | None:
    """Accuracy of the newest validation in a run's `validation.jsonl`; a last line that is still being written is left out."""
    for line in reversed(tail(path, 2)):
        try:
            accuracy = json.loads(line).get("validation/accuracy")
        except json.JSONDecodeError:
            continue
        if isinstance(accuracy, int | float):
            return float(accuracy)
    return None


def mint_id(name: str, now: float) -> str:
    """`<run.name>-<start time, local>`."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"


def make_run_folder(config: Config) -> RunFolder:
    """The folder of a new run with its resolved `config.yaml`, and `latest` pointing to it.

    Raises:
        ConfigError: the folder exists.
    """
    folder = RunFolder(config.folder)
    try:
        folder.path.mkdir(parents=True)
    except FileExistsError:
        why = f"its folder {folder.path} exists"
        raise ConfigError([Problem("run.id", config.run.id, why, "choose another id, or use --resume")]) from None
    folder.logs.mkdir()
    folder.config.write_text(config.to_yaml(), encoding="utf-8")
    point_latest(folder)
    return folder


def set_logs_aside(folder: RunFolder) -> None:
    """Number the logs of a resumed run, so that each file is of one process: `learner-0.log` becomes `learner-0.log.1`."""
    folder.logs.mkdir(exist_ok=True)
    for path in sorted(folder.logs.glob("*.log")):
        number = next(n for n in count(1) if not path.with_name(f"{path.name}.{n}").exists())
        path.rename(path.with_name(f"{path.name}.{number}"))


def point_latest(folder: RunFolder) -> None:
    """Make `latest` point to this run; by a rename, so that it always points to one."""
    link = folder.path.parent / LATEST
    fresh = folder.path.parent / f".{LATEST}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    fresh.symlink_to(folder.path.name)
    fresh.replace(link)


def name_for_commands(folder: RunFolder) -> str:
    """What to give to `--run` and `--resume`: the run's id, or its folder if that is not in `runs/`, where ids are looked up."""
    return folder.run_id if folder.path.parent.resolve() == Path("runs").resolve() else short_path(folder.path)


def find_run_folder(run: str | None, runs: Path = Path("runs")) -> RunFolder:
    """The folder of a run: its id, its path, or None for the latest.

    Raises:
        ConfigError: there is none.
    """
    wanted = run or LATEST
    for candidate in (runs / wanted, Path(wanted)):
        if (candidate / "config.yaml").is_file():
            return RunFolder(candidate.resolve())
    known = sorted(p.parent.name for p in runs.glob("*/config.yaml") if p.parent.name != LATEST)
    fix = (
        f"known: {', '.join(known[-5:])}"
        if known
        else f"start one with launch/run_cluster.sh, or name its folder ({runs}/ has none)"
    )
    raise ConfigError([Problem("run", wanted, f"no folder {runs / wanted} with a config.yaml", fix)])
