"""The recipes by name, and making one only once: a path either holds a whole model or does not exist.

A recipe writes into a folder beside the path, which is renamed when it is whole; of two processes that make the same model at
the same time, the first to finish wins.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from schemas.config import ModelConfig
from schemas.errors import ConfigError, Problem

RECIPES: Mapping[str, str] = {"tiny": "launch.models.tiny", "smollm2": "launch.models.smollm2"}
"""Modules with `build(path: Path) -> None`, which fills an empty folder."""
_DEADLINE_S = 1800.0  # downloading a hundred megabytes over a slow line, and converting them


def is_model(path: Path) -> bool:
    """Whether a Hugging Face checkpoint stands there."""
    return (path / "config.json").is_file()


def build(recipe: str, path: Path) -> None:
    """Make the model in this process, unless `path` holds one. Imports torch.

    Raises:
        ConfigError: something else stands at `path`, or what the recipe needs cannot be had.
    """
    if is_model(path):
        return
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError([Problem("model.path", str(path), "is there and holds no model", "remove it, or give another path")])
    make: Callable[[Path], None] = importlib.import_module(RECIPES[recipe]).build
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        make(work)
        work.chmod(0o755)
        try:
            work.rename(path)
        except OSError:
            if not is_model(path):  # else another process was faster, and made the same
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def ensure(model: ModelConfig) -> None:
    """Make `model.path` by its recipe when it is missing, in a process of its own: the caller never imports torch.

    Raises:
        ConfigError: it could not be made.
    """
    if model.build is None or is_model(Path(model.path)):
        return
    # One thread: the sums, and so the weights, are then the same each time.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "launch.models", model.build, model.path]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as late:
        why = f"making the {model.build} model took longer than {_DEADLINE_S:.0f} s"
        raise ConfigError([Problem("model.build", model.build, why, f"run it by hand: {' '.join(command[1:])}")]) from late
    if done.returncode != 0:
        why = f"making the {model.build} model failed:\n{done.stderr.strip()[-2000:]}\n"
        raise ConfigError([Problem("model.build", model.build, why, f"run it by hand: python {' '.join(command[1:])}")])
