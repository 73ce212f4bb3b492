"""`weir export`: a copy of a Hugging Face checkpoint that the run has exported."""

from __future__ import annotations

import shutil
from pathlib import Path

from launch.folders import RunFolder
from schemas.disk import file_errors
from schemas.errors import ConfigError, Problem, WeirError


def copy_export(folder: RunFolder, step: int, out: Path) -> Path:
    """Copy `hf/step_<step>/` to `out`, which appears whole or not at all; returns what was copied.

    Raises:
        ConfigError: `out` exists. WeirError: the version was not exported, with those that were; `out` cannot be written.
    """
    if out.exists():
        raise ConfigError([Problem("OUT", str(out), "exists", "give a folder that does not exist yet")])
    source = folder.path / "hf" / f"step_{step:08d}"
    if source not in folder.exports:
        raise WeirError(_missing(folder, step, source))
    unfinished = out.with_name(f".{out.name}.unfinished")
    with file_errors(f"{out} was not written"):
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, unfinished)
            unfinished.rename(out)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return source


def _missing(folder: RunFolder, step: int, source: Path) -> str:
    exported = ", ".join(str(int(path.name.removeprefix("step_"))) for path in folder.exports) or "none"
    saved = [int(path.name.removeprefix("step_")) for path in folder.checkpoints]
    words = f"{folder.run_id} has no exported checkpoint of version {step} ({source}); exported versions: {exported}"
    if step in saved:
        checkpoint = folder.path / "checkpoints" / f"step_{step:08d}"
        words += f"; {checkpoint} is a training checkpoint of that version, which only a learner can export"
    elif saved:
        words += f"; training checkpoints: {', '.join(map(str, saved))}"
    return words
