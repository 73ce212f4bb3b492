"""Resuming a run from its newest whole checkpoint: which one that is, and whether the present config may resume it.

Neither torch nor megatron is imported here.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from learner.checkpoint import folders
from learner.checkpoint.kept_config import kept_config
from learner.checkpoint.manifest import Determinism, Manifest
from schemas.config.config import Config
from schemas.config.file import load_for_process
from schemas.errors import ConfigError, Problem, WeirError

log = logging.getLogger(__name__)

# What a step's result depends on and a resumed run may change all the same: `decay` is grpo.max_num_steps, as far as the learning
# rate's decay follows it. A run is often resumed to make it longer, and a phase's deadline is often why it ended.
CHANGEABLE = frozenset({"decay", "refit.phase_timeout_s", "refit.max_tries"})


def find_checkpoint(config: Config) -> tuple[Path, Manifest]:
    """The newest whole checkpoint of the run.

    Raises:
        ConfigError: there is none, or the config has a key that a resumed run cannot change.
    """
    root = config.folder / "checkpoints"
    found = folders.latest(root)
    if found is None:
        why = f"{root} has no whole checkpoint{damages(root)}"
        raise ConfigError([Problem("--resume", config.run_id, why, "start the run anew, under another run.id")])
    check_config(config, found[1])
    check_end(config.grpo.max_num_steps, found[1].version)
    return found


def check_end(max_num_steps: int | None, version: int) -> None:
    """Check that the run does not end before the checkpoint of `version`.

    Raises:
        ConfigError: more versions are trained than the run is to have.
    """
    if max_num_steps is not None and max_num_steps < version:
        why = f"the newest checkpoint is of version {version}"
        raise ConfigError([Problem("grpo.max_num_steps", max_num_steps, why, f"give {version} or more")])


def check_config(config: Config, manifest: Manifest) -> None:
    """Check that a run may be resumed from the checkpoint under `config`.

    Raises:
        ConfigError: names every key that changed and must not, or the config under which the checkpoint was made is not there.
    """
    if config.digest == manifest.config_digest:
        return
    # The digest shows that something differs; only the kept config shows what.
    kept = kept_config(config.folder, manifest.config_digest)
    if not kept.exists():
        why = f"its digest is {config.digest}, the checkpoint was made under {manifest.config_digest}, and {kept} is not there"
        raise ConfigError([Problem("--config", None, f"a key that cannot change has changed: {why}", "use the run's own config")])
    # The id is not in the file: it was given on the command line, or made from the time.
    before, now = load_for_process(kept, [f"run.id={json.dumps(config.run_id)}"]).digested, config.digested
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    fix = "leave it, or start a new run (run.fork_from starts one from a checkpoint)"
    problems = [
        Problem(key, now.get(key), f"cannot change in a resumed run: it was {before.get(key)!r}", fix)
        for key in changed
        if key not in CHANGEABLE
    ]
    if problems:
        raise ConfigError(problems)


def differences(before: Determinism, now: Determinism) -> list[str]:
    """What the arithmetic depends on and differs now, as `name old -> new`: steps may come out with other last bits."""
    old, new = before.model_dump(), now.model_dump()
    return [f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]]


def damages(root: Path) -> str:
    """What is wrong with the damaged checkpoints below `root`, as `: ...`; empty if none is damaged."""
    found = []
    for version in sorted(folders.versions(root)):
        try:
            folders.read(folders.step_folder(root, version))
        except WeirError as damage:
            found.append(str(damage))
    return f": {'; '.join(found)}" if found else ""
