"""The Hugging Face checkpoint that a run starts from, and the one that it ends with.

Weights are read straight from the safetensors files, one tensor at a time: no second model in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from schemas.errors import ConfigError, Problem

FAMILIES = ("qwen3", "qwen2", "llama")


def load_config(folder: Path) -> Any:
    """transformers' config of the checkpoint, if it is of a kind that converts exactly.

    Raises:
        ConfigError: another architecture, or an option of it that the learner does not compute.
    """
    from transformers import AutoConfig

    hf = AutoConfig.from_pretrained(folder)
    problems = list(_unsupported(hf, str(folder)))
    if problems:
        raise ConfigError(problems)
    return hf


def _unsupported(hf: Any, folder: str) -> Iterable[Problem]:
    def problem(key: str, value: Any, known: str) -> Problem:
        return Problem("model.path", folder, f"its config has {key} {value!r}", f"the learner knows {known}")

    if hf.model_type not in FAMILIES:
        yield problem("model_type", hf.model_type, ", ".join(FAMILIES))
        return
    rope = rope_parameters(hf)
    if rope["rope_type"] not in ("default", "linear", "llama3"):
        yield problem("rope_type", rope["rope_type"], "default, linear and llama3")
    if hf.hidden_act != "silu":
        yield problem("hidden_act", hf.hidden_act, "silu")
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if getattr(hf, key, False):
            yield problem(key, True, f"models without {key}")


def rope_parameters(hf: Any) -> dict[str, Any]:
    """`rope_theta`, `rope_type` and the parameters of that type."""
    return {"rope_type": "default", "rope_theta": 10000.0, **(getattr(hf, "rope_parameters", None) or {})}


class Weights:
    """The tensors of a checkpoint folder by name. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        elif (folder / "model.safetensors").is_file():
            files = ["model.safetensors"]
        else:
            raise ConfigError(
                [Problem("model.path", str(folder), "has no model.safetensors", "save the model with save_pretrained")]
            )
        self._stack = contextlib.ExitStack()
        self._files = [self._stack.enter_context(safe_open(folder / name, framework="pt")) for name in files]
        self._where = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - not a dict
        self._folder = folder

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __getitem__(self, name: str) -> Tensor:
        return self._file(name).get_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file(name).get_slice(name).get_shape())

    def _file(self, name: str) -> Any:
        try:
            return self._where[name]
        except KeyError:
            raise ConfigError(
                [
                    Problem(
                        "model.path",
                        str(self._folder),
                        f"has no tensor {name}",
                        "use a complete checkpoint of a causal language model",
                    )
                ]
            ) from None


def save(folder: Path, tensors: dict[str, Tensor], source: Path, dtype: torch.dtype) -> None:
    """Write a Hugging Face checkpoint: `tensors` as safetensors, the rest copied from `source`. Replaces `folder` whole.

    Raises:
        OSError: a full disk; nothing is left of what was written.
    """
    tmp = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    try:
        tmp.mkdir(parents=True)
        _fill(tmp, tensors, source, dtype)
    except (SafetensorError, OSError) as error:  # the former is of the file system too: the tensors are ours
        shutil.rmtree(tmp, ignore_errors=True)
        raise OSError(str(error)) from error
    shutil.rmtree(folder, ignore_errors=True)
    tmp.rename(folder)


def _fill(tmp: Path, tensors: dict[str, Tensor], source: Path, dtype: torch.dtype) -> None:
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(tensors, tmp, metadata={"format": "pt"})
    for file in source.iterdir():
        if (
            file.is_file()
            and file.suffix in (".json", ".model", ".txt", ".jinja")
            and not file.name.endswith(".safetensors.index.json")
        ):
            shutil.copyfile(file, tmp / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (tmp / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
