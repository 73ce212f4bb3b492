"""A transport is added with one file and its name: those that docs/refit.md shows, in a copy of the source tree."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakes.source_tree import SourceTree, shown_code

FILE, CONFIG = "schemas/weights/transports/memory.py", "schemas/config/dispatch.py"
PROPERTIES = "tests/unit/schemas/weights/transports/test_transports.py"
NAMES = '    backend: Literal["auto", "gloo", "nccl"] = "auto"\n'

PROGRAM = """
import asyncio, json, sys, threading
from pathlib import Path
import torch
from learner.transfer.sending import broadcast
from producer.engine.protocol import TransferOffer
from producer.engine.scripted_engine import ScriptedEngine
from schemas.config.dispatch import RefitConfig
from schemas.config.grpo import GenerationConfig
from schemas.config.model import ModelConfig
from schemas.config.producer import ProducerConfig
from schemas.weights.transports.find import for_sender
from tests.fakes.learner.tiny_models import make_model

folder = make_model(Path(sys.argv[1]), "qwen3")
model = ModelConfig(path=str(folder), dtype="float32", max_total_sequence_length=64)
refit = RefitConfig(backend="memory")
engine = ScriptedEngine(model, GenerationConfig(), ProducerConfig(scripted={}), refit)
weights = [(name, torch.full(shape, 0.5)) for name, shape in engine.plan.tensors]
sender = for_sender(refit.backend, gpu=False).sender("", 20.0)
at = sender.open(2)
sent = []


def send():
    sender.connect()
    sent.append(broadcast(engine.plan, [sender], iter(weights), [-1.0]))
    sender.close()


async def receive():
    await engine.pause(drop_caches=False)
    return await engine.receive(TransferOffer(7, at, world=2, rank_offset=1, timeout_s=20.0))


thread = threading.Thread(target=send)
thread.start()
loaded = asyncio.run(receive())
thread.join(20)
same = all(tensor.equal(dict(weights)[name]) for name, tensor in engine.weights.tensors())
print(json.dumps([loaded.version, loaded.digest == sent[0].digest, same]))
"""


def test_the_file_and_the_name_that_the_page_shows_are_all_that_a_transport_needs(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path / "tree")
    tree.add(FILE, shown_code("refit.md", 0))
    tree.replace(CONFIG, NAMES, "    " + shown_code("refit.md", 1).strip() + "\n")
    assert tree.changed == [CONFIG, FILE]
    assert json.loads(tree.run(PROGRAM, tmp_path / "model").splitlines()[-1]) == [7, True, True]
    # The properties of the protocol hold for it without a word about it in their test.
    program = (
        f"import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '{PROPERTIES}', '-k', 'memory', '-rA']))"
    )
    tree.add("pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "--import-mode=importlib"\n')
    assert "4 passed" in tree.run(program)
