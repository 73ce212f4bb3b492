from __future__ import annotations

from pathlib import Path

import pytest

from producer.data import check_data, open_dataset
from producer.environments.registry import resolve
from schemas.config import file as config_file
from schemas.config.data import DataConfig, EnvironmentConfig
from tests.fakes.producer.word_tokenizer import word_tokenizer
from tests.paths import ROOT

CONFIGS = sorted((ROOT / "launch" / "configs").glob("*.yaml"))


def test_the_configs_that_the_pages_name_are_there() -> None:
    assert {"tiny.yaml", "smollm2.yaml", "gpu_gsm8k.yaml"} <= {path.name for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_parses(path: Path) -> None:
    _, problems = config_file.parse(config_file.read(path))
    assert problems == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_data_of_every_shipped_config_is_usable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run = config_file.load_config(path)
    assert check_data(run.data, run.environment) == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_prompt_and_answer_fit_the_length_of_every_shipped_config(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run = config_file.load_config(path)
    room = run.model.max_total_sequence_length - run.generation.max_new_tokens
    rows = open_dataset(run.data, resolve(run.environment), word_tokenizer(chat=True), split="train", max_prompt_tokens=room)
    assert rows.prompt(0).answer is not None


def test_the_example_rows_have_the_answers_of_their_worked_solutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    data = DataConfig(train="examples/gsm8k/train.jsonl", preset="gsm8k")
    math = resolve(EnvironmentConfig(name="math_verify"))
    rows = open_dataset(data, math, word_tokenizer(), split="train", max_prompt_tokens=400)
    assert [rows.prompt(row).answer for row in range(4)] == ["227", "30", "2000", "5"]
