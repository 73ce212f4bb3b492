from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from producer.data import check_data, open_dataset
from producer.environments.tiny_inc import TinyInc
from schemas.config.data import DataConfig, EnvironmentConfig
from schemas.errors import ConfigError
from tests.fakes.producer.data_files import EXACT, hugging_face_folder, jsonl, opened, parquet, saved_to_disk
from tests.fakes.producer.word_tokenizer import BOS, word_tokenizer


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    import huggingface_hub.constants

    # Both libraries read the environment variable when they are imported, which may be long ago.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("write", [jsonl, parquet, hugging_face_folder, saved_to_disk])
def test_every_kind_of_source_gives_the_same_prompts(write: Callable[[Path], str], tmp_path: Path, offline: None) -> None:
    suffix = {"jsonl": ".jsonl", "parquet": ".parquet"}.get(write.__name__, "")
    dataset = opened(write(tmp_path / f"rows{suffix}"))
    assert dataset.rows == 5
    prompt = dataset.prompt(3)
    assert (prompt.row, prompt.text, prompt.answer, dict(prompt.metadata)) == (3, "3 + 3 =", "6", {"n": 3})
    assert prompt.ids.dtype == "<u4"
    assert prompt.ids.tolist() == word_tokenizer().encode("3 + 3 =")
    assert prompt.ids[0] == BOS


def test_digests_of_a_folder_agree_between_copies(tmp_path: Path, offline: None) -> None:
    assert opened(hugging_face_folder(tmp_path / "a")).digest == opened(hugging_face_folder(tmp_path / "b")).digest


def test_blank_lines_and_a_missing_last_newline_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('\n{"prompt": "a", "answer": "1"}\n\n{"prompt": "b", "answer": "2"}')
    dataset = opened(str(path))
    assert dataset.rows == 2
    assert dataset.prompt(1).text == "b"


def test_bad_parquet_rows_are_named_by_index(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "a", "answer": "1"}, {"prompt": None, "answer": "1"}]), path)
    assert [p.key for p in check_data(DataConfig(train=str(path)), EXACT)] == [f"{path} row 1"]


def test_a_missing_file_names_the_nearest_in_its_folder(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl")
    problems = check_data(DataConfig(train=str(tmp_path / "trian.jsonl"), validation=str(tmp_path / "no" / "v.jsonl")), EXACT)
    assert [p.key for p in problems] == ["data.train", "data.validation"]
    assert "train.jsonl" in problems[0].fix
    assert "no folder" in problems[1].fix


def test_what_is_no_data_is_refused(tmp_path: Path, offline: None) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    (tmp_path / "rows.jsonl").write_text("\n")
    (tmp_path / "rows.parquet").write_bytes(b"junk")
    (tmp_path / "folder").mkdir()
    for name, why in [("rows.csv", "neither"), ("rows.jsonl", "no rows"), ("rows.parquet", "parquet"), ("folder", "folder")]:
        (problem,) = check_data(DataConfig(train=str(tmp_path / name)), EXACT)
        assert why in problem.why


def test_an_unknown_split_of_a_saved_set_names_those_it_has(tmp_path: Path) -> None:
    (problem,) = check_data(DataConfig(train=saved_to_disk(tmp_path / "saved"), split="test"), EXACT)
    assert "it has train" in problem.why


def test_a_name_on_the_hub_is_not_fetched_by_the_check() -> None:
    assert check_data(DataConfig(train="openai/gsm8k", preset="gsm8k"), EXACT) == []


def test_a_name_on_the_hub_that_cannot_be_had_is_an_error(offline: None) -> None:
    with pytest.raises(ConfigError, match="hub"):
        opened("nobody/nothing-of-this-name")


def test_an_environments_rows_are_a_source() -> None:
    data = DataConfig(train="environment", validation="environment", preset="verl")
    train = open_dataset(data, TinyInc(), word_tokenizer(), split="train", max_prompt_tokens=60)
    assert train.rows is None
    assert train.prompt(1 << 48).text.endswith(">")
    validation = open_dataset(data, TinyInc(), word_tokenizer(), split="validation", max_prompt_tokens=60)
    assert validation.rows == 200
    assert validation.digest != train.digest
    again = open_dataset(data, TinyInc(), word_tokenizer(), split="train", max_prompt_tokens=60)
    assert again.digest == train.digest
    assert check_data(data, EnvironmentConfig(name="tiny_inc")) == []


def test_an_environment_without_rows_is_no_source() -> None:
    (problem,) = check_data(DataConfig(train="environment"), EXACT)
    assert (problem.key, "generates no rows" in problem.why) == ("data.train", True)
