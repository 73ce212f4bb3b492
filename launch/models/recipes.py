"""The recipes by name. Invariant: a path either holds a whole model or does not exist.

A recipe writes into a folder beside the path, which is renamed when it is complete; of two processes that make the same model at
the same time, the first to finish wins.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from schemas.errors import ConfigError, Problem

RECIPES: Mapping[str, str] = {"tiny": "launch.models.tiny", "smollm2": "launch.models.smollm2"}
"""Modules with `build(path: Path) -> None`, which fills an empty folder."""


def is_model(path: Path) -> bool:
    """Whether there is a Hugging Face checkpoint."""
    return (path / "config.json").is_file()


def make_model(recipe: str, path: Path) -> None:
    """Make the model in this process, unless `path` holds one. Imports torch.

    Raises:
        ConfigError: something else is at `path`, or what the recipe needs is not available.
    """
    if is_model(path):
        return
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError([Problem("model.path", str(path), "exists and holds no model", "remove it, or give another path")])
    make: Callable[[Path], None] = importlib.import_module(RECIPES[recipe]).build
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        make(work)
        work.chmod(0o755)
        try:
            work.rename(path)
        except OSError:
            if not is_model(path):  # otherwise another process was faster, and has made the same
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
