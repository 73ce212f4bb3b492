"""Going on with a run: which one, whether it can be, and what of its config may be another now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.config.check import Checked, check
from launch.folders import RunFolder, find
from learner.checkpoint.folders import latest
from learner.checkpoint.resume import check_end, damages
from schemas.config import file as config_file
from schemas.config.config import SECTIONS, resumable
from schemas.digests import flatten
from schemas.errors import ConfigError, Problem


def resumed(run: str | None, overrides: Sequence[str], runs: Path = Path("runs")) -> tuple[RunFolder, Checked]:
    """The folder and the config of the run to go on with; `run`: its id or folder, None for the latest.

    Raises:
        ConfigError: no such run, nothing to go on from, or an override that needs a new run.
    """
    folder = find(run, runs)
    root = folder.path / "checkpoints"
    found = latest(root)
    if found is None:
        why = f"it has no whole checkpoint{damages(root)}"
        raise ConfigError([Problem("--resume", folder.run_id, why, "start it anew: launch/run_cluster.sh CONFIG")])
    before = config_file.read(folder.config)
    after = config_file.read(folder.config, overrides)
    forbidden = [
        Problem(key, _flat(after).get(key), "cannot change in a run that goes on", "leave it, or start a new run")
        for key in changed_keys(before, after)
        if not resumable(key)
    ]
    if forbidden:
        raise ConfigError(forbidden)
    checked = check(after, resuming=True)
    check_end(checked.config.grpo.max_num_steps, found[1].version)
    return folder, checked


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Keys of a run's file whose values differ."""
    a, b = _flat(before), _flat(after)
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    return flatten({name: raw.get(name) or {} for name in SECTIONS})
