"""What a learner process knows of its run: the configuration sections, the folder, the digest that seals carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from learner.config import (
    LEARNER_SECTIONS,
    CheckpointingConfig,
    LearnerConfig,
    LoggerConfig,
    LossFnConfig,
)
from schemas.config import file as config_file
from schemas.config.sections import (
    SHARED_SECTIONS,
    DataConfig,
    DispatchConfig,
    EnvironmentConfig,
    GenerationConfig,
    GrpoConfig,
    KafkaConfig,
    ModelConfig,
    RefitConfig,
    RunConfig,
)
from schemas.disk import told, write_whole
from schemas.errors import ConfigError, Problem

# What a step's result depends on besides the agreed sections: the seal and the claim carry the digest of all of it.
_TRAINING_SECTIONS = ("loss_fn", "learner")
_UNTRAINED_KEYS = frozenset({"learner.rank_timeout_s"})


@dataclass(frozen=True, slots=True)
class LearnerRun:
    """The sections that the learner reads, and `producer_count`, the only thing it wants to know of the producers' section."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    environment: EnvironmentConfig
    grpo: GrpoConfig
    generation: GenerationConfig
    refit: RefitConfig
    kafka: KafkaConfig
    loss_fn: LossFnConfig
    learner: LearnerConfig
    dispatch: DispatchConfig
    checkpointing: CheckpointingConfig
    logger: LoggerConfig
    producer_count: int
    agreed: dict[str, Any]
    config_digest: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The file as it was read, overrides applied. Secrets in it are references."""

    @property
    def id(self) -> str:
        assert self.run.id is not None
        return self.run.id

    @property
    def folder(self) -> Path:
        """`runs/<run id>`."""
        return Path(self.run.dir) / self.id

    @property
    def digested(self) -> dict[str, Any]:
        """What `config_digest` is made of: everything that a step's result depends on, flat."""
        return _digested({"loss_fn": self.loss_fn, "learner": self.learner, "run": self.run, "grpo": self.grpo}, self.agreed)

    def keep_config(self) -> None:
        """Write `config.<digest>.yaml` into the run's folder, once: what the digest in seals and manifests stands for."""
        kept = kept_config(self.folder, self.config_digest)
        if kept.exists():
            return
        with told("the run's config was not written", self.folder):
            write_whole(kept, yaml.safe_dump(dict(self.raw), sort_keys=False, allow_unicode=True, width=120))


def load(path: str, overrides: list[str] | None = None) -> LearnerRun:
    """Read a run's file.

    Raises:
        ConfigError: all problems of the learner's and the shared sections at once.
    """
    raw = config_file.read(path, overrides or [])
    parsed, problems = config_file.parse(raw, {**SHARED_SECTIONS, **LEARNER_SECTIONS})
    if "run" in parsed and parsed["run"].id is None:
        fix = "add it to the file or give run.id=NAME; launch/run_cluster.sh mints one"
        problems.append(Problem("run.id", None, "required when a process is started by hand", fix))
    if problems:
        raise ConfigError(problems)
    agreed = config_file.agreed(parsed)
    producer = raw.get("producer") or {}
    return LearnerRun(
        **parsed,
        producer_count=int(producer.get("count", 1)) if isinstance(producer, dict) else 1,
        agreed=agreed,
        config_digest=config_digest(parsed, agreed),
        raw=raw,
    )


def kept_config(folder: Path, digest: str) -> Path:
    """Where a run keeps the config of that digest."""
    return folder / f"config.{digest}.yaml"


def config_digest(parsed: dict[str, Any], agreed: dict[str, Any]) -> str:
    """Digest of everything in the configuration that a step's result depends on."""
    return config_file.digest(_digested(parsed, agreed))


def _digested(parsed: dict[str, Any], agreed: dict[str, Any]) -> dict[str, Any]:
    training = config_file.flatten({name: parsed[name].model_dump(mode="json") for name in _TRAINING_SECTIONS})
    training = {key: value for key, value in training.items() if key not in _UNTRAINED_KEYS}
    schedule = parsed["learner"].optimizer
    length = None if schedule.lr_decay_style == "constant" or schedule.lr_decay_steps else parsed["grpo"].max_num_steps
    return {**agreed, **training, "run.seed": parsed["run"].seed, "decay": length}
