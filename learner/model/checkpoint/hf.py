"""The Hugging Face checkpoint that a run starts from, and the one that it ends with.

Weights are read straight from the safetensors files, one tensor at a time: no second model in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from learner.model.families import find_family
from learner.model.families.family import Family
from schemas.errors import ConfigError, Problem
from schemas.model_files import model_config


def load_family(folder: Path) -> Family:
    """The family of the checkpoint in `folder`. From config.json alone: transformers words what it does not know in its own way.

    Raises:
        ConfigError: no family of its `model_type`, or config.json holds no object.
    """
    return find_family(model_config(folder).get("model_type"), str(folder))


def load_config(folder: Path, family: Family) -> Any:
    """transformers' config of the checkpoint, if the family computes exactly that model.

    Raises:
        ConfigError: an option of it that the family refuses.
    """
    from transformers import AutoConfig

    hf = AutoConfig.from_pretrained(folder)
    problems = list(family.problems(hf, str(folder)))
    if problems:
        raise ConfigError(problems)
    return hf


class Weights:
    """The tensors of a checkpoint folder by name. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        # The index decides where there is one: folders of converted checkpoints also hold files of other formats and leftovers.
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
    # The old one goes only now. A kill between these two lines leaves none under the name; it can be exported again.
    shutil.rmtree(folder, ignore_errors=True)
    tmp.rename(folder)


def _fill(tmp: Path, tensors: dict[str, Tensor], source: Path, dtype: torch.dtype) -> None:
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(tensors, tmp, metadata={"format": "pt"})
    # Tokenizer, chat template and generation settings are the model's too. The index of the source is not: shards are cut anew.
    for file in source.iterdir():
        if (
            file.is_file()
            and file.suffix in (".json", ".model", ".txt", ".jinja")
            and not file.name.endswith(".safetensors.index.json")
        ):
            shutil.copyfile(file, tmp / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    # The older name of `dtype`. Two that disagree would be read differently by different versions of transformers.
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (tmp / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
