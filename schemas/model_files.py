"""Facts of a model that can be read from its files without torch: where they are, sizes, digests that both sides compare."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError, Problem

# Keys of config.json that say how a file was written, not what the model is.
_VOLATILE = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype"})
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json")


def model_folder(path: str) -> Path:
    """The local folder of a checkpoint; a hub name is looked up in, or fetched into, the hub's cache.

    Raises:
        ConfigError: no such folder, and the hub cannot give it.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or path.count("/") != 1 or path.startswith((".", "/")):
        why = "has no config.json" if folder.exists() else "no such folder"
        raise ConfigError([Problem("model.path", path, why, "give the folder of a Hugging Face checkpoint, or a hub name")])
    from huggingface_hub import snapshot_download  # a second to import: only for hub names
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path, allow_patterns=["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        why = f"no such folder, and the model hub cannot give it ({type(error).__name__})"
        raise ConfigError([Problem("model.path", path, why, "download the checkpoint and give its folder")]) from error


def model_config(folder: Path) -> dict[str, Any]:
    """config.json as a mapping.

    Raises:
        ConfigError: the file holds something else.
    """
    return _mapping(folder / "config.json")


def model_digest(folder: Path) -> str:
    """Digest of the architecture: config.json without keys that differ from writer to writer."""
    config = {key: value for key, value in model_config(folder).items() if key not in _VOLATILE}
    return _sha(json.dumps(config, sort_keys=True, separators=(",", ":")).encode())


def tokenizer_digest(folder: Path) -> str:
    """Digest of what turns text into ids: vocabulary, merges and chat template."""
    parts = [(folder / name).read_bytes() for name in _TOKENIZER_FILES if (folder / name).is_file()]
    config_file = folder / "tokenizer_config.json"
    if config_file.is_file():
        parts.append(json.dumps(_mapping(config_file).get("chat_template"), sort_keys=True).encode())
    return _sha(b"\0".join(parts))


def _mapping(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not even text
        raise ConfigError([Problem("model.path", str(path), f"not JSON ({error})", "download the checkpoint again")]) from error
    if not isinstance(found, dict):
        raise ConfigError([Problem("model.path", str(path), "holds no JSON object", "download the checkpoint again")])
    return found


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
