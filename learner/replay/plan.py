"""What a replay does: which checkpoint, which steps, under which configuration. Light: neither torch nor a broker."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from learner.checkpoint import folders
from learner.checkpoint.manifest import Determinism, Manifest
from learner.dump.index import CHECKPOINTS, CONFIG, Index, is_dump, read_index, verify
from learner.replay.changes import check_changes
from schemas.config.config import Config
from schemas.config.file import load_for_process
from schemas.errors import ConfigError, Problem, WeirError

_GROUP = re.compile(r"v(\d{1,8})/s(\d{1,9})(/d(\d{1,9})/a(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class GroupKey:
    """One group of a sealed batch; `attempt` is (draw, attempt) if they were given."""

    text: str
    version: int
    slot: int
    attempt: tuple[int, int] | None = None

    @classmethod
    def parse(cls, text: str) -> GroupKey:
        """
        Raises:
            ConfigError: not of the form of a record's key.
        """
        match = _GROUP.fullmatch(text)
        if match is None:
            raise ConfigError([Problem("--group", text, "no key of a group", "write v00000012/s0031, as weir show prints it")])
        attempt = (int(match[4]), int(match[5])) if match[3] else None
        return cls(text, int(match[1]), int(match[2]), attempt)


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What a person asked for.

    `folder`: the run's, or a dump; `overrides`: of the config, as `key=value`; `verified`: the dump's files were hashed already.
    """

    folder: Path
    step: int | None = None
    to: int | None = None
    group: str | None = None
    overrides: Sequence[str] = ()
    verified: bool = False

    @property
    def steps(self) -> list[tuple[str, object, Sequence[int]]]:
        """(option, value as it was given, the versions that it asks for), one entry an option."""
        if self.group is not None:
            return [("--group", self.group, [GroupKey.parse(self.group).version])]
        if self.step is None:
            return []
        given: list[tuple[str, object, Sequence[int]]] = [("--step", self.step, [self.step])]
        return given if self.to is None else [*given, ("--to", self.to, range(self.step, self.to + 1))]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Load `checkpoint`, train up to version `first`, then look at a group, or train `first` to `last`.

    `config` is the one that the steps were trained with; `changed` another one, from `first` on. `facts`: what the arithmetic
    depended on in the run's checkpoints around these steps. `topic_ids`: by topic, as far as these checkpoints know them.
    `notes`: what a person should know before.
    """

    folder: Path
    config: Config
    changed: Config | None
    checkpoint: Path
    manifest: Manifest
    facts: Sequence[Determinism]
    topic_ids: dict[str, str]
    first: int
    last: int
    group: GroupKey | None = None
    index: Index | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def start_config(self) -> Config:
        """The config that the processes start with."""
        return self.changed if self.changed is not None and self.first == self.manifest.version else self.config


def plan_replay(request: ReplayRequest) -> ReplayPlan:
    """The plan for a request. Reads the run's folder, or verifies the dump.

    Raises:
        ConfigError: steps that make no sense, an override that is wrong or cannot be applied, a folder that is no run's.
        WeirError: there is no whole checkpoint to start from; names the damaged ones.
    """
    group = GroupKey.parse(request.group) if request.group is not None else None
    first, last = _steps(request, group)
    check_changes(request.overrides)
    index = _index(request) if is_dump(request.folder) else None
    folder, manifest, damaged = nearest(request.folder / CHECKPOINTS, first)
    config, changed, idle = _configs(request, index)
    if group is not None and group.slot >= config.grpo.num_prompts_per_step:
        why = f"slots are 0 to {config.grpo.num_prompts_per_step - 1}"
        raise ConfigError([Problem("--group", group.text, why, "give one of them")])
    if changed is not None and group is not None:
        why = "a group is looked at as it was trained"
        raise ConfigError([Problem("--set", ", ".join(request.overrides), why, "leave --set or --group out")])
    if changed is not None and first != manifest.version and _layout(changed) != _layout(config):
        why = f"the layout cannot change between the checkpoint of version {manifest.version} and step {first}"
        fix = f"give --step {manifest.version}, or leave the layout"
        raise ConfigError([Problem("--set", ", ".join(request.overrides), why, fix)])
    later = [found for _, found in folders.whole(request.folder / CHECKPOINTS) if found.version > manifest.version]
    until = min((found.version for found in later if found.version > last), default=last)
    return ReplayPlan(
        folder=request.folder,
        config=config,
        changed=changed,
        checkpoint=folder,
        manifest=manifest,
        facts=[manifest.determinism, *(found.determinism for found in later if found.version <= until)],
        topic_ids={name: topic_id for found in (manifest, *later) for name, topic_id in found.topic_ids.items()},
        first=first,
        last=last,
        group=group,
        index=index,
        notes=[
            *(f"passed over a damaged checkpoint: {damage}" for damage in damaged),
            *(f"{one} changes nothing that a step depends on" for one in idle),
        ],
    )


def _index(request: ReplayRequest) -> Index:
    """The index of the dump, which holds the steps and whose files are as they were written."""
    index = read_index(request.folder)
    for option, value, steps in request.steps:
        if not all(index.checkpoint <= step <= index.last for step in steps):
            why = f"the dump holds versions {index.checkpoint} to {index.last}"
            raise ConfigError([Problem(option, value, why, "give steps among them, or dump the run again")])
    return index if request.verified else verify(request.folder)


def _steps(request: ReplayRequest, group: GroupKey | None) -> tuple[int, int]:
    if group is not None:
        if request.step not in (None, group.version) or request.to is not None:
            why = f"--group {group.text} says the step"
            raise ConfigError([Problem("--step", request.step, why, "leave --step and --to out")])
        return group.version, group.version
    if request.step is None:
        raise ConfigError([Problem("--step", None, "required", "give the version to train again, such as --step 12")])
    last = request.step if request.to is None else request.to
    if request.step < 0 or last < request.step:
        raise ConfigError(
            [Problem("--to", last, f"steps {request.step} to {last} are none", "give --step A --to B with 0 <= A <= B")]
        )
    return request.step, last


def nearest(root: Path, step: int) -> tuple[Path, Manifest, list[str]]:
    """The newest whole checkpoint of version `step` or lower, and what is wrong with newer ones that were passed over.

    Raises:
        WeirError: there is none.
    """
    versions = folders.versions(root)
    damaged: list[str] = []
    for version in sorted((v for v in versions if v <= step), reverse=True):
        folder = folders.step_folder(root, version)
        try:
            return folder, folders.read(folder), damaged
        except WeirError as damage:
            damaged.append(str(damage))
    if damaged:
        raise WeirError(f"no whole checkpoint of version {step} or lower: {'; '.join(damaged)}; replay from a dump (--from)")
    have = f"the lowest is of version {min(versions)}, give --step {min(versions)} or higher" if versions else "there is none"
    raise WeirError(f"step {step} needs a checkpoint of version {step} or lower in {root}: {have}")


def _configs(request: ReplayRequest, index: Index | None) -> tuple[Config, Config | None, list[str]]:
    """(config as trained, changed config or None, overrides that no step depends on, such as where the model lies).

    The last ones are part of both configs.
    """
    path = str(request.folder / CONFIG)
    places = places_in(request.folder) if index is not None else []
    plain = load_for_process(path, places)
    harmless = [one for one in request.overrides if _digest(path, [*places, one]) == plain.digest]
    config = load_for_process(path, [*places, *harmless])
    if len(harmless) == len(request.overrides):
        return config, None, harmless
    return config, load_for_process(path, [*places, *request.overrides]), harmless


def _digest(path: str, overrides: Sequence[str]) -> str | None:
    try:
        return load_for_process(path, overrides).digest
    except ConfigError:
        return None  # wrong, or right only together with others: reported when all are loaded


def places_in(folder: Path, at: Path | None = None) -> list[str]:
    """Overrides that make a config use the model in the dump `folder`, or in `at`, where the dump will be copied."""
    home, found = folder if at is None else at, []
    if (folder / "model").is_dir():
        found += [_override("model.path", home / "model"), "model.build=null"]
    if (folder / "tokenizer").is_dir():
        found.append(_override("model.tokenizer", home / "tokenizer"))
    return found


def _override(key: str, path: Path) -> str:
    """Quoted: YAML would read `a: b` or `a #1` as something else."""
    return f"{key}={json.dumps(str(path), ensure_ascii=False)}"


def _layout(config: Config) -> tuple[object, ...]:
    learner = config.learner
    return (
        learner.nproc,
        learner.tensor_model_parallel_size,
        learner.pipeline_model_parallel_size,
        learner.sequence_parallel,
        learner.use_distributed_optimizer,
        config.model.dtype,
    )
