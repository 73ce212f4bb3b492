"""Folders of runs, as far as a launcher looks at them."""

from __future__ import annotations

from pathlib import Path

from launch.folders import RunFolder
from learner.checkpoint.manifest import Manifest, Offsets
from schemas.config.config import Config
from schemas.config.file import build
from tests.fakes.learner import saved
from tests.fakes.learner.facts import FACTS
from tests.fakes.records.runs import raw_config


def run_config(runs: Path, run_id: str = "tiny-1") -> Config:
    return build(raw_config(run={"name": "tiny", "dir": str(runs)})).with_id(run_id)


def add_checkpoint(folder: RunFolder, step: int) -> Path:
    manifest = Manifest(
        run="u", version=step, incarnation=0, topic_ids={}, next_offsets=Offsets(control=0, status=0), state_digest="s",
        weights_digest="w", config_digest="c", determinism=FACTS,
    )  # fmt: skip
    return saved.save(folder.path / "checkpoints", manifest, lambda _: None)


def add_export(folder: RunFolder, step: int) -> Path:
    path = folder.path / "hf" / f"step_{step:08d}"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path
