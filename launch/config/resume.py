"""Resuming a run: which one, whether it can be resumed, and which keys of its config may have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.config.check import CheckedConfig, check_raw
from launch.folders import RunFolder, find_run_folder
from learner.checkpoint.folders import latest
from learner.checkpoint.resume import check_end, damages
from schemas.config import file as config_file
from schemas.config.config import SECTIONS, resumable
from schemas.digests import flatten
from schemas.errors import ConfigError, Problem


def load_resumed(run: str | None, overrides: Sequence[str], runs: Path = Path("runs")) -> tuple[RunFolder, CheckedConfig]:
    """The folder and the config of the run to resume; `run`: its id or folder, None for the latest.

    Raises:
        ConfigError: no such run, no checkpoint to resume from, or an override that needs a new run.
    """
    folder = find_run_folder(run, runs)
    root = folder.path / "checkpoints"
    found = latest(root)
    if found is None:
        why = f"it has no whole checkpoint{damages(root)}"
        raise ConfigError([Problem("--resume", folder.run_id, why, "start a new run: launch/run_cluster.sh CONFIG")])
    before = config_file.read(folder.config)
    after = config_file.read(folder.config, overrides)
    forbidden = [
        Problem(key, _flat(after).get(key), "cannot change in a resumed run", "leave it as it is, or start a new run")
        for key in changed_keys(before, after)
        if not resumable(key)
    ]
    if forbidden:
        raise ConfigError(forbidden)
    checked = check_raw(after, resuming=True)
    check_end(checked.config.grpo.max_num_steps, found[1].version)
    return folder, checked


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Keys of a run's file whose values differ."""
    a, b = _flat(before), _flat(after)
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    return flatten({name: raw.get(name) or {} for name in SECTIONS})
