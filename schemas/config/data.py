"""Sections `data` and `environment`: where prompts come from, and what scores the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.config.base import LOCAL, Section


class DataConfig(Section):
    """Where prompts come from, and what the keys of a row hold."""

    train: Annotated[str, LOCAL]
    """A .jsonl or .parquet file, name or folder of a Hugging Face data set, or `environment`: the environment's generator."""
    validation: Annotated[str | None, LOCAL] = None
    """The same for validation; null: no validation."""
    split: str = "train"
    """Split of the Hugging Face data set that `train` names."""
    validation_split: str = "test"
    """Split of the Hugging Face data set that `validation` names."""
    subset: str | None = None
    """Configuration name of a Hugging Face data set (`main` for gsm8k)."""
    preset: Literal["verl", "trl", "gsm8k", "nemo_rl"] | None = None
    """A known layout of rows; it sets the keys below that are not given."""
    prompt_key: str | None = None
    """Dotted path of the prompt in a row: a string, or a list of chat messages; null: `prompt`."""
    answer_key: str | None = None
    """Dotted path of the reference answer in a row; null: `answer`."""
    system_prompt: str | None = None
    """A system message for prompts that have none (chat templates only)."""
    apply_chat_template: bool | None = None
    """Whether a string prompt becomes a user message in the tokenizer's template; null: if the tokenizer has a template."""


class EnvironmentConfig(Section):
    """What scores a trajectory."""

    name: str = "exact_match"
    """A built-in name, or `module:Class` or `module:function`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the environment's constructor as keyword arguments."""
