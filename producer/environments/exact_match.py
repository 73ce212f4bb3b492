"""1 if the completion is the answer, else 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from producer.environments.base import Score
from producer.environments.single_turn import SingleTurn


class ExactMatch(SingleTurn):
    """strip: ignore white space around both; case: letter case matters. If the answer is a list, any of its items counts."""

    needs_answer = True
    in_thread = False

    def __init__(self, strip: bool = True, case: bool = True) -> None:
        super().__init__()
        self._strip = strip
        self._case = case

    def _normal(self, value: Any) -> str:
        text = str(value)
        text = text.strip() if self._strip else text
        return text if self._case else text.casefold()

    def score(self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]) -> Score:
        answers = answer if isinstance(answer, list | tuple) else [answer]
        return float(self._normal(completion) in {self._normal(a) for a in answers})
