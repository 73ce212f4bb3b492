"""What a producer knows of its run, and what it works with: engine, data, environment, tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producer.config import PRODUCER_SECTIONS, ProducerConfig
from producer.data.dataset import Dataset, open_dataset
from producer.data.tokenizer import load_tokenizer
from producer.engine.protocol import Engine
from producer.environments import registry
from producer.environments.base import Environment, Prompt, PromptRefused, Tokenizer
from producer.rollout import PromptFailed
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
from schemas.errors import ConfigError, Problem
from schemas.model_files import model_digest, model_folder, tokenizer_digest
from schemas.weights.plan import WeightPlan


@dataclass(frozen=True, slots=True)
class ProducerRun:
    """The sections that a producer reads."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    environment: EnvironmentConfig
    grpo: GrpoConfig
    generation: GenerationConfig
    refit: RefitConfig
    kafka: KafkaConfig
    dispatch: DispatchConfig
    producer: ProducerConfig
    agreed: dict[str, Any]

    @property
    def id(self) -> str:
        assert self.run.id is not None
        return self.run.id

    @property
    def folder(self) -> Path:
        return Path(self.run.dir) / self.id


def load(path: str, overrides: list[str]) -> ProducerRun:
    """Read a run's file.

    Raises:
        ConfigError: all problems of the producer's and the shared sections at once.
    """
    parsed, problems = config_file.parse(config_file.read(path, overrides), {**SHARED_SECTIONS, **PRODUCER_SECTIONS})
    if "run" in parsed and parsed["run"].id is None:
        fix = "give the id of the learner's run as run.id=NAME"
        problems.append(Problem("run.id", None, "required when a process is started by hand", fix))
    if problems:
        raise ConfigError(problems)
    return ProducerRun(**parsed, agreed=config_file.agreed(parsed))


@dataclass(slots=True)
class Equipment:
    """Built once, before joining."""

    engine: Engine
    plan_digest: str
    tokenizer: Tokenizer
    environment: Environment
    train: Dataset
    validation: Dataset | None
    dataset_digest: str
    digests: dict[str, str] = field(default_factory=dict)

    def prompt(self, dataset: Dataset, row: int) -> Prompt:
        """
        Raises:
            PromptFailed: the row cannot be used.
        """
        try:
            return dataset.prompt(row)
        except PromptRefused as refused:
            raise PromptFailed(f"row {row}: {refused}") from refused

    async def close(self) -> None:
        await self.environment.close()
        await self.engine.close()


def equip(run: ProducerRun) -> Equipment:
    """Open data and environment first (cheap, and most mistakes are there), then start the engine.

    Raises:
        ConfigError: data, environment, tokenizer or model cannot be used.
    """
    folder = model_folder(run.model.path)
    tokenizer_folder = model_folder(run.model.tokenizer) if run.model.tokenizer else folder
    tokenizer = load_tokenizer(run.model)
    environment = registry.resolve(run.environment)
    room = run.model.max_total_sequence_length - 1
    train = open_dataset(run.data, environment, tokenizer, split="train", max_prompt_tokens=room)
    validation = None
    if run.data.validation is not None:
        validation = open_dataset(run.data, environment, tokenizer, split="validation", max_prompt_tokens=room)
    engine, plan = _engine(run, run.model.model_copy(update={"path": str(folder)}))
    return Equipment(
        engine=engine,
        plan_digest=plan.digest,
        tokenizer=tokenizer,
        environment=environment,
        train=train,
        validation=validation,
        dataset_digest=config_file.digest([train.digest, validation.digest if validation else None]),
        digests={
            "model": model_digest(folder),
            "tokenizer": tokenizer_digest(tokenizer_folder),
            "environment": registry.digest(run.environment),
        },
    )


def _engine(run: ProducerRun, model: ModelConfig) -> tuple[Engine, WeightPlan]:
    """`model`: its path is a local folder, whatever the config names."""
    if run.producer.engine == "scripted":
        from producer.engine.scripted_engine import ScriptedEngine

        scripted = ScriptedEngine(model, run.generation, run.producer, run.refit)
        return scripted, scripted.plan
    from producer.engine.vllm_engine import VllmEngine  # imports vllm: many seconds

    engine = VllmEngine(model, run.generation, run.producer, run.refit)
    return engine, engine.plan
