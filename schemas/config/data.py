"""Sections `data` and `environment`: where prompts come from, and what scores the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.config.base import LOCAL, Section


class DataConfig(Section):
    """Where prompts come from, and which keys of a row hold what."""

    train: Annotated[str, LOCAL]
    """A .jsonl or .parquet file, a Hugging Face dataset name or folder, or `environment` for the environment's generator."""
    validation: Annotated[str | None, LOCAL] = None
    """Same, for validation; null switches validation off."""
    split: str = "train"
    """Split of a Hugging Face dataset that `train` names."""
    validation_split: str = "test"
    """Split of a Hugging Face dataset that `validation` names."""
    subset: str | None = None
    """Configuration name of a Hugging Face dataset (`main` for gsm8k)."""
    preset: Literal["verl", "trl", "gsm8k", "nemo_rl"] | None = None
    """A known layout of rows; sets the keys below unless they are given."""
    prompt_key: str | None = None
    """Dotted path of the prompt in a row: a string, or a list of chat messages. `prompt` when null."""
    answer_key: str | None = None
    """Dotted path of the reference answer in a row. `answer` when null."""
    system_prompt: str | None = None
    """A system message put in front of a prompt that has none (chat templates only)."""
    apply_chat_template: bool | None = None
    """Whether a string prompt becomes a user message of the tokenizer's template; null: if the tokenizer has one."""


class EnvironmentConfig(Section):
    """What scores a trajectory."""

    name: str = "exact_match"
    """A built-in name, or `module:Class` or `module:function`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the environment's constructor as keyword arguments."""
