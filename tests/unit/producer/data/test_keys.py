from __future__ import annotations

from typing import Any

import pytest

from producer.data.keys import BadRow, Fields, layout_of, read_row
from schemas.config.data import DataConfig

CHAT = [{"role": "user", "content": "2 + 2?"}]


def read(row: dict[str, Any], needs_answer: bool = True, **config: object) -> Fields:
    return read_row(row, layout_of(DataConfig(train="x.jsonl", **config), needs_answer))


def refused(row: dict[str, Any], needs_answer: bool = True, **config: object) -> BadRow:
    with pytest.raises(BadRow) as caught:
        read(row, needs_answer, **config)
    return caught.value


def test_plain_rows_need_no_keys() -> None:
    fields = read({"prompt": "hello", "answer": "world", "level": 3})
    assert (fields.prompt, fields.answer, fields.metadata) == ("hello", "world", {"level": 3})


def test_verl_rows_load_by_their_preset() -> None:
    row = {
        "data_source": "gsm8k",
        "prompt": CHAT,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 0},
    }
    fields = read(row, preset="verl")
    assert fields.prompt == ({"role": "user", "content": "2 + 2?"},)
    assert fields.answer == "4"
    assert fields.metadata["reward_model"] == {"style": "rule", "ground_truth": "4"}
    assert set(fields.metadata) == {"data_source", "ability", "reward_model", "extra_info"}


@pytest.mark.parametrize("answer_key", ["solution", "answer", "ground_truth"])
def test_trl_rows_load_by_their_preset(answer_key: str) -> None:
    fields = read({"prompt": CHAT, answer_key: "$4$", "difficulty": 1}, needs_answer=False, preset="trl")
    assert (fields.answer, fields.metadata) == ("$4$", {"difficulty": 1})


def test_trl_rows_may_have_no_answer_when_the_reward_needs_none() -> None:
    assert read({"prompt": "write a haiku"}, needs_answer=False, preset="trl").answer is None
    assert refused({"prompt": "write a haiku"}, needs_answer=True, preset="trl").key == "data.answer_key"


def test_gsm8k_answers_are_what_follows_the_marker() -> None:
    fields = read({"question": "How many?", "answer": "40 * 50 = <<40*50=2000>>2000\n#### 2,000"}, preset="gsm8k")
    assert (fields.prompt, fields.answer, fields.metadata) == ("How many?", "2000", {})


def test_a_gsm8k_answer_without_the_marker_is_refused() -> None:
    assert "####" in refused({"question": "How many?", "answer": "2000"}, preset="gsm8k").why


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "2 + 2?", "generated_solution": "...", "expected_answer": "4"},
        {"input": "2 + 2?", "output": "4"},
        {"input": CHAT, "expected_answer": "4"},
        {"messages": [*CHAT, {"role": "assistant", "content": "4"}], "task_name": "math"},
    ],
)
def test_nemo_rl_rows_load_by_their_preset(row: dict[str, Any]) -> None:
    fields = read(row, preset="nemo_rl")
    assert fields.prompt in ("2 + 2?", ({"role": "user", "content": "2 + 2?"},))
    assert fields.answer == "4"


def test_explicit_keys_win_over_the_preset() -> None:
    row = {"question": "a?", "prompt": "b?", "answer": "#### 1", "label": "two #### 2"}
    assert read(row, preset="gsm8k", prompt_key="prompt").prompt == "b?"
    assert read(row, preset="gsm8k", answer_key="label").answer == "two #### 2"
    assert read(row, preset="gsm8k", answer_key="answer").answer == "1"


def test_dotted_keys_reach_into_rows_and_dots_in_names_work_too() -> None:
    assert read({"prompt": "p", "a": {"b": {"c": 7}}}, answer_key="a.b.c").answer == 7
    assert read({"prompt": "p", "a.b": 8}, answer_key="a.b").answer == 8


def test_a_missing_key_names_the_rows_keys_and_the_nearest() -> None:
    bad = refused({"promt": "p", "reward_model": {"ground_truth": "1"}})
    assert bad.key == "data.prompt_key"
    assert "promt, reward_model, reward_model.ground_truth" in bad.why
    assert "did you mean promt?" in bad.fix


def test_a_named_answer_key_must_be_there_even_if_the_reward_needs_none() -> None:
    assert refused({"prompt": "p"}, needs_answer=False, answer_key="gold").key == "data.answer_key"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "", "answer": "1"}, "empty"),
        ({"prompt": " \n", "answer": "1"}, "empty"),
        ({"prompt": None, "answer": "1"}, "null"),
        ({"prompt": 5, "answer": "1"}, "a int"),
        ({"prompt": [], "answer": "1"}, "no message"),
        ({"prompt": ["hello"], "answer": "1"}, "role"),
        ({"prompt": [{"role": "user", "content": None}], "answer": "1"}, "null"),
        ({"prompt": [*CHAT, {"role": "assistant", "content": "4"}], "answer": "1"}, "assistant"),
        ({"prompt": "p", "answer": None}, "answer"),
        ({"prompt": "p", "answer": ""}, "answer"),
        ({"prompt": "p", "answer": "1", "images": [b"png"]}, "images"),
        ({"prompt": [{"role": "user", "content": [{"type": "image", "url": "x"}]}], "answer": "1"}, "image"),
    ],
)
def test_unusable_rows_are_refused_with_the_reason(row: dict[str, Any], why: str) -> None:
    assert why in refused(row).why


def test_text_parts_of_a_message_are_joined_and_empty_image_columns_do_no_harm() -> None:
    parts = [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]
    fields = read({"prompt": [{"role": "user", "content": parts}], "answer": 0, "images": []})
    assert fields.prompt == ({"role": "user", "content": "2 + 2?"},)
    assert fields.answer == 0
