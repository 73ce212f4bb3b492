"""What a producer rolls out with: engine, tokenizer, environment and data sets, opened once before it joins a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from producer.data.dataset import Dataset, open_dataset
from producer.data.tokenizer import load_tokenizer
from producer.engine.protocol import Engine
from producer.environments import registry
from producer.environments.base import Environment, Prompt, PromptRefused, Tokenizer
from producer.rollout import PromptFailed
from schemas.config.config import Config
from schemas.config.model import ModelConfig
from schemas.digests import digest
from schemas.model_files import model_digest, model_folder, tokenizer_digest
from schemas.weights.plan import WeightPlan


@dataclass(slots=True)
class Resources:
    """They outlive a `Shell`: a producer that joins anew keeps them. `close` ends them.

    plan_digest, dataset_digest, digests: what the learner compares between producers when one joins.
    """

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


def open_resources(config: Config) -> Resources:
    """Open data and environment first (cheap, and most mistakes are there), then start the engine.

    Raises:
        ConfigError: data, environment, tokenizer or model cannot be used.
    """
    folder = model_folder(config.model.path)
    tokenizer_folder = model_folder(config.model.tokenizer) if config.model.tokenizer else folder
    tokenizer = load_tokenizer(config.model)
    environment = registry.resolve(config.environment)
    longest = config.model.max_total_sequence_length - 1
    train = open_dataset(config.data, environment, tokenizer, split="train", max_prompt_tokens=longest)
    validation = None
    if config.data.validation is not None:
        validation = open_dataset(config.data, environment, tokenizer, split="validation", max_prompt_tokens=longest)
    engine, plan = _start_engine(config, config.model.model_copy(update={"path": str(folder)}))
    return Resources(
        engine=engine,
        plan_digest=plan.digest,
        tokenizer=tokenizer,
        environment=environment,
        train=train,
        validation=validation,
        dataset_digest=digest([train.digest, validation.digest if validation else None]),
        digests={
            "model": model_digest(folder),
            "tokenizer": tokenizer_digest(tokenizer_folder),
            "environment": registry.digest(config.environment),
        },
    )


def _start_engine(config: Config, model: ModelConfig) -> tuple[Engine, WeightPlan]:
    """`model`: its path is a local folder, whatever the config names."""
    if config.producer.engine == "scripted":
        from producer.engine.scripted_engine import ScriptedEngine

        scripted = ScriptedEngine(model, config.generation, config.producer, config.refit)
        return scripted, scripted.plan
    from producer.engine.vllm_engine import VllmEngine  # imports vllm: many seconds

    engine = VllmEngine(model, config.generation, config.producer, config.refit)
    return engine, engine.plan
