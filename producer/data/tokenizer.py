"""Loading the model's tokenizer."""

from __future__ import annotations

from producer.environments.base import Tokenizer
from schemas.config.model import ModelConfig
from schemas.errors import ConfigError, Problem


def load_tokenizer(model: ModelConfig) -> Tokenizer:
    """The tokenizer of `model.tokenizer`, or the model's own.

    Raises:
        ConfigError: there is none.
    """
    import transformers

    key, path = ("model.tokenizer", model.tokenizer) if model.tokenizer else ("model.path", model.path)
    try:
        tokenizer: Tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        fix = "give a checkpoint folder with its tokenizer, or a name on the hub"
        raise ConfigError([Problem(key, path, f"no tokenizer can be loaded ({first_line})", fix)]) from error
    return tokenizer
