"""One run's config: every section, whoever reads it. All processes of a run take this one model, read from the same file.

Adding a key is one edit, in its section. Adding a section is two: its class, and a field here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_core import PydanticUndefined

from schemas.config.base import AGREED, LATER, RESUME, TRAINED, Key, Section, keys_of
from schemas.config.data import DataConfig, EnvironmentConfig
from schemas.config.dispatch import DispatchConfig, RefitConfig
from schemas.config.grpo import GenerationConfig, GrpoConfig
from schemas.config.kafka import KafkaConfig
from schemas.config.launch import LaunchConfig
from schemas.config.learner import CheckpointingConfig, LearnerConfig, LoggerConfig
from schemas.config.loss import AnyLossConfig, ClippedPgConfig
from schemas.config.model import ModelConfig
from schemas.config.producer import ProducerConfig
from schemas.config.run import RunConfig
from schemas.digests import digest, flatten


class Config(BaseModel):
    """A run's file."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    run: RunConfig = Field(default_factory=RunConfig)
    model: Annotated[ModelConfig, AGREED]
    data: Annotated[DataConfig, AGREED]
    environment: Annotated[EnvironmentConfig, AGREED] = Field(default_factory=EnvironmentConfig)
    grpo: Annotated[GrpoConfig, AGREED] = Field(default_factory=GrpoConfig)
    loss_fn: Annotated[AnyLossConfig, TRAINED] = Field(default_factory=ClippedPgConfig)
    generation: Annotated[GenerationConfig, AGREED] = Field(default_factory=GenerationConfig)
    producer: Annotated[ProducerConfig, RESUME] = Field(default_factory=ProducerConfig)
    learner: Annotated[LearnerConfig, TRAINED] = Field(default_factory=LearnerConfig)
    dispatch: Annotated[DispatchConfig, RESUME] = Field(default_factory=DispatchConfig)
    refit: Annotated[RefitConfig, AGREED] = Field(default_factory=RefitConfig)
    kafka: KafkaConfig = Field(default_factory=KafkaConfig)
    checkpointing: Annotated[CheckpointingConfig, RESUME] = Field(default_factory=CheckpointingConfig)
    logger: Annotated[LoggerConfig, RESUME] = Field(default_factory=LoggerConfig)
    launch: Annotated[LaunchConfig, RESUME] = Field(default_factory=LaunchConfig)

    @property
    def sections(self) -> dict[str, Section]:
        """The sections by name, in the order of the file."""
        return {name: getattr(self, name) for name in SECTIONS}

    @property
    def run_id(self) -> str:
        """Raises: ValueError: the run has no id yet."""
        if self.run.id is None:
            raise ValueError("the run has no id yet")
        return self.run.id

    @property
    def folder(self) -> Path:
        """`<run.dir>/<run.id>`; only once the run has an id."""
        return Path(self.run.dir) / self.run_id

    def with_id(self, run_id: str) -> Config:
        """The same run under an id."""
        return self.model_copy(update={"run": RunConfig.model_validate({**self.run.model_dump(), "id": run_id})})

    @cached_property
    def _flat(self) -> dict[str, Any]:
        return flatten({name: section.model_dump(mode="json") for name, section in self.sections.items()})

    def _those(self, wanted: Iterator[Key]) -> dict[str, Any]:
        """Values of keys, flat. A key that holds a mapping (`environment.args`) stands for all below it."""
        return {
            path: value
            for key in wanted
            for path, value in self._flat.items()
            if (path == key.path or path.startswith(f"{key.path}.")) and not _is_later_default(key, value)
        }

    @cached_property
    def agreed(self) -> dict[str, Any]:
        """The keys that a producer and the learner must hold alike, flat, without secrets and places."""
        return self._those(key for key in KEYS if key.agreed)

    @cached_property
    def digested(self) -> dict[str, Any]:
        """What `digest` is made of: everything that a step's result depends on, flat.

        `decay` is `grpo.max_num_steps` as far as the learning rate's decay follows it.
        """
        schedule = self.learner.optimizer
        follows = schedule.lr_decay_style != "constant" and not schedule.lr_decay_steps
        trained = self._those(key for key in KEYS if key.trained)
        return {**self.agreed, **trained, "decay": self.grpo.max_num_steps if follows else None}

    @cached_property
    def digest(self) -> str:
        """Digest of everything in the configuration that a step's result depends on; seals, claims and manifests carry it."""
        return digest(self.digested)

    def to_yaml(self) -> str:
        """Every key, defaults included, as `file.load_config` takes it back. Secrets stay the references that they are."""
        plain = {name: _plain(section.model_dump()) for name, section in self.sections.items()}
        text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
        return text


SECTIONS: tuple[str, ...] = tuple(Config.model_fields)
KEYS: tuple[Key, ...] = tuple(keys_of(Config))
"""Every key that a run's file may hold, in the order of the file."""


def key_paths() -> list[str]:
    """Every key that a run's file may hold, sorted."""
    return sorted(key.path for key in KEYS)


def resumable(path: str) -> bool:
    """Whether a resumed run may have another value of the key."""
    return any(RESUME in key.marks for key in KEYS if path == key.path or path.startswith(f"{key.path}."))


def _is_later_default(key: Key, value: Any) -> bool:
    default = key.field.default
    return LATER in key.marks and default is not PydanticUndefined and value == default


def _plain(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()  # `env:NAME` or `file:PATH`; the section refuses anything else
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value
