"""What the `config.json` of a checkpoint folder says about the model, read without transformers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Kind and sizes of the model; None where the file does not give them."""

    model_type: str | None = None
    max_position_embeddings: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    num_hidden_layers: int | None = None
    head_dim: int | None = None
    quantized: bool = False


def read_model_facts(folder: Path) -> ModelFacts | None:
    """The facts of a checkpoint folder, or None if there is no readable `config.json` in it."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    head_dim = _count(config, "head_dim")
    if head_dim is None and heads and hidden:
        head_dim = hidden // heads
    model_type = config.get("model_type")
    return ModelFacts(
        model_type=model_type if isinstance(model_type, str) else None,
        max_position_embeddings=_count(config, "max_position_embeddings"),
        num_attention_heads=heads,
        num_key_value_heads=_count(config, "num_key_value_heads") or heads,
        num_hidden_layers=_count(config, "num_hidden_layers"),
        head_dim=head_dim,
        quantized="quantization_config" in config,
    )


def _count(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int else None


def looks_like_hub_name(text: str) -> bool:
    """`org/name`, unless there is a folder `org` here: a folder that is missing in it is far more likely then."""
    return _HUB_NAME.fullmatch(text) is not None and not Path(text).parent.is_dir()
