"""Layouts of rows that other tools write, so that their files can be used as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Layout:
    """Which dotted keys hold what. Of several keys, the first that a row has counts.

    answer_needed: a row without any of the answer keys is an error; answer_from_chat: a last assistant message is the answer;
    extract: makes the reference answer from the value under the key, or raises ValueError.
    """

    prompt: tuple[str, ...]
    answer: tuple[str, ...]
    answer_needed: bool
    answer_from_chat: bool = False
    extract: Callable[[Any], Any] | None = None


def after_marker(value: Any) -> str:
    """The number after the last `####` of a worked solution, without thousands separators."""
    _, marker, answer = str(value).rpartition("####")
    answer = answer.strip().replace(",", "")
    if not marker or not answer:
        raise ValueError("no `#### ` with the answer after it")
    return answer


PRESETS: Mapping[str, Layout] = {
    "verl": Layout(("prompt",), ("reward_model.ground_truth",), answer_needed=True),
    "trl": Layout(("prompt",), ("solution", "answer", "ground_truth"), answer_needed=False),
    "gsm8k": Layout(("question",), ("answer",), answer_needed=True, extract=after_marker),
    "nemo_rl": Layout(("problem", "input", "messages"), ("expected_answer", "output"), answer_needed=True, answer_from_chat=True),
}
PLAIN = Layout(("prompt",), ("answer",), answer_needed=False)
"""The layout without a preset."""
