"""A run's file as a whole: every section of every part, with the rules between them checked.

Light on purpose: the config check, `--dry-run` and the supervisor import this module, so it imports neither torch nor vllm nor
megatron.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, SecretStr

from learner.config import (
    LEARNER_SECTIONS,
    CheckpointingConfig,
    LearnerConfig,
    LoggerConfig,
    LossFnConfig,
)
from producer.config import PRODUCER_SECTIONS, ProducerConfig
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
    Section,
)
from schemas.errors import ConfigError


class RestartConfig(Section):
    """What is started again when it dies. A death before the first join (a producer) or the first checkpoint (the learner)
    ends the run, and so does exit code 2, wrong input."""

    max_restarts: Annotated[int, Field(ge=0)] = 3
    """The learner is started again, from its newest checkpoint, so many times without a further version trained; then the run
    ends. 0: never."""
    max_producer_restarts: Annotated[int, Field(ge=0)] = 5
    """A producer is started again so many times within `window_s`; one more death ends the run. 0: the first one does."""
    max_broker_restarts: Annotated[int, Field(ge=0)] = 5
    """Likewise for a local broker that was started on demand. Any other broker is waited for (`kafka.outage_timeout_s`)."""
    window_s: Annotated[float, Field(gt=0)] = 600.0
    """After so long a death of a producer or of the broker counts no more, neither for the limit nor for the pause."""
    backoff_s: Annotated[float, Field(gt=0)] = 1.0
    """Pause before the first start; it doubles with each further death that counts."""
    max_backoff_s: Annotated[float, Field(gt=0)] = 30.0
    """The longest pause."""


class LaunchConfig(Section):
    """How `launch/run_cluster.sh` looks after the processes that it starts."""

    learner_start_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """The run ends when the learner has not claimed it on the control topic by then."""
    stop_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A process that was asked to end and has not by then is killed."""
    restart: RestartConfig = Field(default_factory=RestartConfig)


LAUNCH_SECTIONS: dict[str, type[Section]] = {"launch": LaunchConfig}

ALL_SECTIONS: dict[str, type[Section]] = {**SHARED_SECTIONS, **LEARNER_SECTIONS, **PRODUCER_SECTIONS, **LAUNCH_SECTIONS}


@dataclass(frozen=True)
class RunFile:
    """All sections of one run."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    environment: EnvironmentConfig
    grpo: GrpoConfig
    loss_fn: LossFnConfig
    generation: GenerationConfig
    producer: ProducerConfig
    learner: LearnerConfig
    dispatch: DispatchConfig
    refit: RefitConfig
    kafka: KafkaConfig
    checkpointing: CheckpointingConfig
    logger: LoggerConfig
    launch: LaunchConfig

    @property
    def sections(self) -> dict[str, Section]:
        """The sections by name, in the order of the file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def run_dir(self) -> Path:
        """`<run.dir>/<run.id>`; only once the run has an id."""
        if self.run.id is None:
            raise ValueError("the run has no id yet")
        return Path(self.run.dir) / self.run.id

    def with_id(self, run_id: str) -> RunFile:
        """The same run under an id."""
        return replace(self, run=RunConfig.model_validate({**self.run.model_dump(), "id": run_id}))


def parse(raw: Mapping[str, Any]) -> RunFile:
    """The sections of a raw mapping, without the rules between them.

    Raises:
        ConfigError: every problem of every section.
    """
    parsed, problems = config_file.parse(raw, ALL_SECTIONS)
    if problems:
        raise ConfigError(problems)
    return RunFile(**parsed)


def read(path: str | Path, overrides: Sequence[str] = ()) -> RunFile:
    """A file that was already checked, such as a run folder's `config.yaml`: the sections alone, nothing of this machine.

    Raises:
        ConfigError: every problem of every section.
    """
    return parse(config_file.read(path, overrides))


def dump(runfile: RunFile) -> str:
    """YAML with every key, defaults included, that `read` takes back. Secrets stay the references that they are."""
    plain = {name: _plain(section.model_dump()) for name, section in runfile.sections.items()}
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return text


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


def key_set() -> list[str]:
    """Every key that a run's file may hold, sorted, as dotted paths."""
    return sorted(key for name, section in ALL_SECTIONS.items() for key in _keys(name, section))


def _keys(prefix: str, section: type[Section]) -> list[str]:
    keys: list[str] = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            keys += _keys(f"{prefix}.{name}", inner)
        else:
            keys.append(f"{prefix}.{name}")
    return keys
