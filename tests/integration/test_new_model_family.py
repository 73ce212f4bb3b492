"""A family is added with one file: the one that docs/models.md shows, in a copy of the source tree with nothing else changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from learner.model.families import known_families, unknown_family

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "broker_config", "producer", "learner", "launch", "tests")
FILE = "learner/model/families/quen.py"

PROGRAM = """
import json, sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from launch.config.model_facts import read_model_facts
from learner.model.families import known_families, unknown_family
from learner.model.policy import Policy
from schemas.config.learner import LearnerConfig
from schemas.config.loss import ClippedPgConfig
from schemas.config.model import ModelConfig
from tests.fakes import tiny_models


class QuenConfig(Qwen3Config):
    model_type = "quen"


class QuenForCausalLM(Qwen3ForCausalLM):
    config_class = QuenConfig


# What transformers would do if it knew the model.
AutoConfig.register("quen", QuenConfig)
AutoModelForCausalLM.register(QuenConfig, QuenForCausalLM)
tiny_models.FAMILIES["quen"] = {"model_type": "quen", "head_dim": 32, "tie_word_embeddings": True}
folder = tiny_models.make_model(Path(sys.argv[1]), "quen")
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + str(folder / "store"), rank=0, world_size=1)
model = ModelConfig(path=str(folder), dtype="float32")
policy = Policy(model, LearnerConfig(train_micro_batch_size=8), ClippedPgConfig(), seed=0, total_steps=4)
reference = AutoModelForCausalLM.from_pretrained(folder)
expected = {name: tensor for name, tensor in reference.state_dict().items() if name != "lm_head.weight"}
found = {name: tensor.clone() for name, tensor in policy.export()}
batch = tiny_models.make_batch()
with torch.no_grad():
    wanted = tiny_models.hf_logprobs(reference, batch.tokens) * batch.token_mask
gap = (policy.logprobs(batch) - wanted).abs().max().item()
print(json.dumps({
    "model_type": json.loads((folder / "config.json").read_text())["model_type"],
    "known": list(known_families()),
    "refused": str(unknown_family(read_model_facts(folder).model_type, str(folder))),
    "names_differ": sorted(found.keys() ^ expected.keys()),
    "tensors_differ": [name for name in expected if not torch.equal(found[name], expected[name])],
    "logprob_gap": gap,
    "skipped": policy.train_step(batch)["skipped_step"],
}))
dist.destroy_process_group()
"""


def shown_file() -> str:
    """The family's file as the page shows it: the first block of Python."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    block = re.search(r"^( *)```python\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    return textwrap.dedent(block[2])


def files(tree: Path) -> dict[str, str]:
    """Digest of every source file of the packages."""
    found = {}
    for package in PACKAGES:
        for path in (tree / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found[str(path.relative_to(tree))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The source tree with one file more."""
    copy = tmp_path / "tree"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / FILE).write_text(shown_file(), encoding="utf-8")
    return copy


@pytest.mark.timeout(300)
def test_the_file_that_the_page_shows_is_all_that_a_renamed_family_needs(tree: Path, tmp_path: Path) -> None:
    before, after = files(ROOT), files(tree)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {FILE}
    assert "quen" not in known_families()
    assert unknown_family("quen", "m") is not None

    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(program), str(tmp_path / "model")]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["model_type"] == "quen"
    assert said["known"] == sorted([*known_families(), "quen"])
    assert said["refused"] == "None"
    assert said["names_differ"] == said["tensors_differ"] == []
    assert said["logprob_gap"] < 1e-4
    assert said["skipped"] == 0.0
