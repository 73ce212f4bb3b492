"""Loading the model's tokenizer, and what two processes compare of it."""

from __future__ import annotations

import hashlib
from typing import Any

from producer.environments.base import Tokenizer
from schemas.config import ModelConfig
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


def tokenizer_digest(tokenizer: Any) -> str:
    """Digest of vocabulary, merges, pre- and post-processing, chat template and special tokens; 16 hex digits."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    specials = repr(sorted((name, str(token)) for name, token in tokenizer.special_tokens_map.items()))
    return hashlib.sha256("\0".join([content, str(tokenizer.chat_template), specials]).encode()).hexdigest()[:16]
