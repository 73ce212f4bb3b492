"""Starting a run from another run's checkpoint: `run.fork_from`.

The new run has its own id, uuid, topics and seals. Its version 0 is the state that the other run had at that step: weights,
moments, position in the learning rate's schedule, random state. Neither torch nor megatron is imported here. Invariant: a run
never starts from other bytes than were saved: a dump's files are hashed, and what was loaded must have the saved digest.
"""

from __future__ import annotations

from pathlib import Path

from learner.checkpoint import folders
from learner.checkpoint.determinism import same_layout
from learner.checkpoint.manifest import Determinism
from learner.dump.index import CHECKPOINTS, CONFIG, is_dump, verify
from schemas.config.file import read
from schemas.config.learner import LearnerConfig
from schemas.config.model import ModelConfig
from schemas.config.run import RunConfig
from schemas.errors import ConfigError, Problem, WeirError
from schemas.model_files import model_digest

KEY = "run.fork_from"


def find_fork(run: RunConfig, model: ModelConfig) -> Path | None:
    """The checkpoint folder that the run starts from; None if it is no fork.

    Raises:
        ConfigError: no such run, no whole checkpoint of that step, a dump that is not as it was written, or another model.
    """
    asked = run.fork_from
    if asked.run is None or asked.step is None:
        return None
    home = _home(Path(run.dir), asked.run)
    folder = folders.step_folder(home / CHECKPOINTS, asked.step)
    # A run's own folder was written by a learner on this machine; a dump came over a network, or from somebody's disk.
    if is_dump(home):
        verify(home, (CONFIG, "model/", f"{CHECKPOINTS}/{folder.name}/"))
    try:
        folders.read(folder)
    except WeirError as damage:
        versions = sorted(folders.versions(home / CHECKPOINTS))
        have = f"checkpoints there: {', '.join(map(str, versions))}" if versions else "there are none"
        raise ConfigError([Problem(f"{KEY}.step", asked.step, str(damage), have)]) from damage
    _check_model(home, model)
    return folder


def check_forked(folder: Path, learner: LearnerConfig, here: Determinism, digest: str) -> None:
    """Check that what was loaded from another run's checkpoint `folder` is what was saved, if the layout allows comparing.

    Args:
        learner: this run's config section.
        here: facts of this process.
        digest: of the state that was loaded.

    Raises:
        WeirError: it is another state.
    """
    manifest = folders.read(folder)
    theirs = read(folder.parent.parent / CONFIG).get("learner") or {}
    sharded = theirs.get("use_distributed_optimizer", LearnerConfig.model_fields["use_distributed_optimizer"].default)
    # The digest is over ranks in order, so the same state has another one under another layout: it cannot be compared then.
    if sharded != learner.use_distributed_optimizer or not same_layout(manifest.determinism, here):
        return
    if digest != manifest.state_digest:
        raise WeirError(
            f"the checkpoint {folder} holds state {digest[:16]}, its manifest says {manifest.state_digest[:16]}: its files were "
            f"changed; fork from another one ({KEY}.step)"
        )


def _home(runs: Path, name: str) -> Path:
    # An id first: a folder of the same name in the working directory must not be taken for the run.
    for candidate in (runs / name, Path(name)):
        if (candidate / CONFIG).is_file():
            return candidate
    why = f"no folder {runs / name} with a config.yaml"
    raise ConfigError([Problem(f"{KEY}.run", name, why, "give the id of a run in run.dir, a run's folder, or a dump")])


def _check_model(home: Path, model: ModelConfig) -> None:
    """The model must be the checkpoint's, as far as both models' files are on this machine.

    Raises:
        ConfigError: another dtype, or another model.
    """
    theirs = read(home / CONFIG).get("model") or {}
    if theirs.get("dtype", model.dtype) != model.dtype:
        why = f"the run that it forks from has {theirs['dtype']}"
        raise ConfigError([Problem("model.dtype", model.dtype, why, f"use {theirs['dtype']}")])
    inside = home / "model"
    other, own = inside if inside.is_dir() else Path(str(theirs.get("path", ""))), Path(model.path)
    # A hub name, or a model that was moved: megatron compares the shapes when it loads.
    if not all((folder / "config.json").is_file() for folder in (own, other)):
        return
    if model_digest(own) != model_digest(other):
        why = f"another model than {other}, which the run that it forks from has"
        raise ConfigError([Problem("model.path", model.path, why, f"use {other}, or start without {KEY}")])
