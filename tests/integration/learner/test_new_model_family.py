"""A family is added with one file: the one that docs/models.md shows, in a copy of the source tree with nothing else changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learner.model.families import known_families, unknown_family
from tests.fakes.source_tree import SourceTree, shown_code

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
from tests.fakes.learner import tiny_models


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


@pytest.mark.timeout(300)
def test_the_file_that_the_page_shows_is_all_that_a_renamed_family_needs(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path / "tree")
    tree.add(FILE, shown_code("models.md"))
    assert tree.changed == [FILE]
    assert "quen" not in known_families()
    assert unknown_family("quen", "m") is not None

    found = json.loads(tree.run(PROGRAM, tmp_path / "model").splitlines()[-1])
    assert found["model_type"] == "quen"
    assert found["known"] == sorted([*known_families(), "quen"])
    assert found["refused"] == "None"
    assert found["names_differ"] == found["tensors_differ"] == []
    assert found["logprob_gap"] < 1e-4
    assert found["skipped"] == 0.0
