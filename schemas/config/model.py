"""Section `model`: the policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.config.base import LOCAL, Section, Unit


class ModelConfig(Section):
    """The policy: a Hugging Face checkpoint folder."""

    path: Annotated[str, LOCAL]
    """A local Hugging Face checkpoint folder, or a hub name that transformers can load."""
    tokenizer: Annotated[str | None, LOCAL] = None
    """Folder or hub name of the tokenizer; null: the model's."""
    build: Annotated[Literal["tiny", "smollm2"] | None, LOCAL] = None
    """A recipe in `launch/models/` that makes `path` on this machine when it is missing."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the numbers that the engine computes with, that a refit sends, and that the learner's forward pass uses."""
    max_total_sequence_length: Annotated[int, Field(ge=2), Unit("tokens")] = 1024
    """Most tokens of prompt and completion together."""
