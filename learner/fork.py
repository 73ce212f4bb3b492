"""Starting a run from another run's checkpoint: `run.fork_from`.

The new run is its own: other id, uuid, topics and seals; its version 0 is the state that the other run had at that step: weights,
moments, position in the learning rate's schedule, random state. Neither torch nor megatron is imported here.
"""

from __future__ import annotations

from pathlib import Path

from learner import checkpoint
from schemas import config_file
from schemas.config import ModelConfig, RunConfig
from schemas.errors import ConfigError, Problem, WeirError
from schemas.model_files import model_digest

KEY = "run.fork_from"


def find_fork(run: RunConfig, model: ModelConfig) -> Path | None:
    """The checkpoint folder that the run starts from; None if it is no fork.

    Raises:
        ConfigError: no such run, no whole checkpoint of that step, or a checkpoint of another model.
    """
    asked = run.fork_from
    if asked.run is None or asked.step is None:
        return None
    home = _home(Path(run.dir), asked.run)
    folder = checkpoint.step_folder(home / "checkpoints", asked.step)
    try:
        checkpoint.read(folder)
    except WeirError as damage:
        versions = sorted(checkpoint.versions(home / "checkpoints"))
        have = f"checkpoints there: {', '.join(map(str, versions))}" if versions else "there are none"
        raise ConfigError([Problem(f"{KEY}.step", asked.step, str(damage), have)]) from damage
    _check_model(home, model)
    return folder


def _home(runs: Path, name: str) -> Path:
    for candidate in (runs / name, Path(name)):
        if (candidate / "config.yaml").is_file():
            return candidate
    why = f"no folder {runs / name} with a config.yaml"
    raise ConfigError([Problem(f"{KEY}.run", name, why, "give the id of a run in run.dir, a run's folder, or a dump")])


def _check_model(home: Path, model: ModelConfig) -> None:
    """Shapes and numbers must be those of the checkpoint, as far as both models' files are on this machine."""
    theirs = config_file.read(home / "config.yaml").get("model") or {}
    if theirs.get("dtype", model.dtype) != model.dtype:
        why = f"the run that it forks from has {theirs['dtype']}"
        raise ConfigError([Problem("model.dtype", model.dtype, why, f"use {theirs['dtype']}")])
    inside = home / "model"
    other, own = inside if inside.is_dir() else Path(str(theirs.get("path", ""))), Path(model.path)
    if not all((folder / "config.json").is_file() for folder in (own, other)):
        return
    if model_digest(own) != model_digest(other):
        why = f"another model than {other}, which the run that it forks from has"
        raise ConfigError([Problem("model.path", model.path, why, f"use {other}, or start without {KEY}")])
