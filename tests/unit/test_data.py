from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from producer.data import Dataset, PromptRefused, check_data, open_dataset
from producer.environments.exact_match import ExactMatch
from producer.environments.tiny_inc import TinyInc
from schemas.config.data import DataConfig, EnvironmentConfig
from schemas.errors import ConfigError
from tests.fakes.word_tokenizer import BOS, word_tokenizer

ROWS = [{"prompt": f"{n} + {n} =", "answer": str(2 * n), "n": n} for n in range(5)]
EXACT = EnvironmentConfig(name="exact_match")


def jsonl(path: Path, rows: list[Any] | None = None) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in (ROWS if rows is None else rows)))
    return str(path)


def parquet(path: Path) -> str:
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return str(path)


def hugging_face_folder(path: Path) -> str:
    path.mkdir()
    jsonl(path / "train.jsonl")
    return str(path)


def saved_to_disk(path: Path) -> str:
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(path)
    return str(path)


def opened(source: str, chat: bool = False, max_prompt_tokens: int = 100, split: str = "train", **config: Any) -> Dataset:
    data = DataConfig(**{"train": source, **config})
    tokenizer = word_tokenizer(chat)
    return open_dataset(data, ExactMatch(), tokenizer, split=split, max_prompt_tokens=max_prompt_tokens)  # type: ignore[arg-type]


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


def test_a_prompt_is_tokenised_once_while_it_is_asked_for(tmp_path: Path) -> None:
    dataset = opened(jsonl(tmp_path / "rows.jsonl"))
    assert dataset.prompt(2) is dataset.prompt(2)


def test_a_row_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    dataset = opened(jsonl(tmp_path / "rows.jsonl"))
    with pytest.raises(IndexError, match="5"):
        dataset.prompt(5)


def test_digest_depends_on_rows_and_keys_and_not_on_the_place(tmp_path: Path) -> None:
    first = opened(jsonl(tmp_path / "a.jsonl")).digest
    assert opened(jsonl(tmp_path / "b.jsonl")).digest == first
    assert opened(jsonl(tmp_path / "c.jsonl", ROWS[:4])).digest != first
    assert opened(jsonl(tmp_path / "d.jsonl"), answer_key="n").digest != first


def test_digests_of_a_folder_agree_between_copies(tmp_path: Path, offline: None) -> None:
    assert opened(hugging_face_folder(tmp_path / "a")).digest == opened(hugging_face_folder(tmp_path / "b")).digest


def test_blank_lines_and_a_missing_last_newline_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('\n{"prompt": "a", "answer": "1"}\n\n{"prompt": "b", "answer": "2"}')
    dataset = opened(str(path))
    assert dataset.rows == 2
    assert dataset.prompt(1).text == "b"


def test_a_tokenizer_with_a_template_makes_a_chat_of_a_string(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl")
    prompt = opened(path, chat=True).prompt(1)
    assert prompt.text == "<u>1 + 1 =<a>"
    assert prompt.ids[0] != BOS
    assert prompt.messages == ({"role": "user", "content": "1 + 1 ="},)
    assert opened(path, chat=True, apply_chat_template=False).prompt(1).text == "1 + 1 ="


def test_the_system_prompt_is_put_in_front_of_chats_that_have_none(tmp_path: Path) -> None:
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "q"}]
    path = jsonl(tmp_path / "rows.jsonl", [{"prompt": "q", "answer": "a"}, {"prompt": own, "answer": "a"}])
    dataset = opened(path, chat=True, system_prompt="be brief")
    assert dataset.prompt(0).text == "<y>be brief<u>q<a>"
    assert dataset.prompt(1).text == "<y>own<u>q<a>"


def test_a_chat_for_a_tokenizer_without_template_is_an_error_at_start(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"prompt": [{"role": "user", "content": "q"}], "answer": "a"}] * 3)
    with pytest.raises(ConfigError, match="no chat template") as caught:
        opened(path)
    assert len(caught.value.problems) == 1


def test_a_chat_that_the_template_refuses_is_an_error_at_start(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"prompt": [{"role": "tool", "content": "q"}], "answer": "a"}])
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1.*no tools here"):
        opened(path, chat=True)


def test_a_prompt_that_is_too_long_is_named_at_start(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [*ROWS, {"prompt": "x" * 40, "answer": "1"}])
    with pytest.raises(ConfigError, match=r"rows\.jsonl:6: a prompt of 41 tokens, at most 40"):
        opened(path, max_prompt_tokens=40)
    assert opened(path, max_prompt_tokens=41).rows == 6


def test_bad_rows_are_named_by_file_and_line_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": ""\n[1]\n{"prompt": "", "answer": "1"}\n')
    with pytest.raises(ConfigError) as caught:
        opened(str(path))
    assert [p.key for p in caught.value.problems] == [f"{path}:2", f"{path}:3", f"{path}:4"]
    assert "not JSON" in str(caught.value.problems[0])


def test_of_many_bad_rows_ten_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"prompt": "", "answer": "1"}] * 25)
    with pytest.raises(ConfigError) as caught:
        opened(path)
    assert len(caught.value.problems) == 10
    assert "and 15 more bad rows" in str(caught.value)


def test_a_key_that_all_rows_lack_is_one_problem(tmp_path: Path) -> None:
    problems = check_data(DataConfig(train=jsonl(tmp_path / "rows.jsonl"), prompt_key="promt"), EXACT)
    assert [p.key for p in problems] == ["data.prompt_key"]
    assert "did you mean prompt?" in str(problems[0])
    assert "and 4 more bad rows" in str(problems[0])


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


def test_an_unknown_environment_is_a_problem_of_the_check() -> None:
    (problem,) = check_data(DataConfig(train="x.jsonl"), EnvironmentConfig(name="exactmatch"))
    assert problem.key == "environment.name"


def test_a_row_that_changed_under_the_run_refuses_its_prompt_only(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl")
    dataset = opened(path)
    text = Path(path).read_bytes()
    with open(path, "r+b") as file:
        file.write(b"#" * (text.index(b"\n")))
    with pytest.raises(PromptRefused, match=r"rows\.jsonl:1"):
        dataset.prompt(0)
    assert dataset.prompt(1).answer == "2"


def test_the_check_imports_neither_torch_nor_vllm_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from producer.data import check_data; from schemas.config.data import DataConfig, EnvironmentConfig;"
        f"assert check_data(DataConfig(train={jsonl(tmp_path / 'rows.jsonl')!r}), EnvironmentConfig()) == [];"
        f"assert check_data(DataConfig(train={parquet(tmp_path / 'rows.parquet')!r}), EnvironmentConfig()) == [];"
        "bad = {'torch', 'vllm', 'transformers', 'datasets', 'megatron'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_prompt_that_is_too_long_is_found_without_transformers(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    word_tokenizer().backend_tokenizer.save(str(file))
    data = DataConfig(train=jsonl(tmp_path / "rows.jsonl", [{"prompt": "1" * 90, "answer": "1"}]))
    assert check_data(data, EXACT, file, 91) == []  # 90 characters and <s>
    [problem] = check_data(data, EXACT, file, 90)
    assert "a prompt of 91 tokens, at most 90" in problem.why
    assert problem.key.endswith("rows.jsonl:1")
