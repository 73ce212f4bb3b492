"""Mathematical equality of the completion's answer and the row's, by the math-verify library."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from producer.environments.base import PromptRefused, Score
from producer.environments.single_turn import SingleTurn
from producer.environments.worker_pool import CallTimeout, WorkerPool


def prepare() -> None:
    """In a worker: imports take seconds, and the library warns of the timeouts that `verify` turns off on purpose."""
    logging.disable(logging.WARNING)
    import math_verify  # noqa: F401


def verify(answer: str, completion: str) -> float:
    """In a worker: whether the completion's answer equals the row's, as 1 or 0.

    Without the library's own timeouts: they need the main thread's signals, and cannot interrupt one long operation.

    Raises:
        PromptRefused: the row's answer is neither a formula nor a number.
    """
    import math_verify

    gold_text = answer if "$" in answer or "\\boxed" in answer else f"\\boxed{{{answer}}}"
    gold = math_verify.parse(gold_text, parsing_timeout=None)
    if not gold:
        raise PromptRefused(f"answer {answer!r}: not a formula or number that can be parsed")
    found = math_verify.parse(completion, parsing_timeout=None)
    return float(bool(found) and math_verify.verify(gold, found, timeout_seconds=None))


class MathVerify(SingleTurn):
    """Reward: 1 if the completion's last formula or number equals the answer, else 0.

    timeout_s: limit of one verification; timeout_score: the reward past that limit, null makes it a failed trajectory;
    workers: processes that verify.
    """

    needs_answer = True
    libraries = ("math-verify", "latex2sympy2_extended", "sympy")

    def __init__(self, timeout_s: float = 5.0, timeout_score: float | None = None, workers: int = 1) -> None:
        super().__init__()
        if timeout_s <= 0 or workers < 1:
            raise ValueError(f"timeout_s={timeout_s}, workers={workers}: both must be above 0")
        self._timeout_s = timeout_s
        self._timeout_score = timeout_score
        self.pool = WorkerPool(workers, prepare)

    async def score(self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]) -> Score:
        try:
            return await self.pool.call(verify, str(answer), completion, timeout_s=self._timeout_s)
        except CallTimeout:
            if self._timeout_score is None:
                raise
            return float(self._timeout_score)

    async def close(self) -> None:
        await super().close()
        await self.pool.close()
