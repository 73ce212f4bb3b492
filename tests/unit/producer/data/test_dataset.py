from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from producer.data import PromptRefused, check_data
from schemas.config.data import DataConfig, EnvironmentConfig
from schemas.errors import ConfigError
from tests.fakes.producer.data_files import EXACT, ROWS, jsonl, opened, parquet
from tests.fakes.producer.word_tokenizer import BOS, word_tokenizer


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
