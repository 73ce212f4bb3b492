"""Any task of the reasoning-gym library, as data and as scoring."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from producer.environments.base import Score, Split
from producer.environments.single_turn import SingleTurn

_SEEDS = 1 << 30  # training uses seeds below 2^30, validation those above: they never meet
_MOST = _SEEDS // 2 - 1000  # rows of a split, and the largest seed
_CHUNK = 1000  # rows of one data set of the library: some tasks prepare all of their rows at once, so no end means many sets
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym(SingleTurn):
    """Reward: the task's own score, 0 to 1, of the text between the last `<answer>` tags, or of the whole completion.

    task: a name of the library (`chain_sum`, `basic_arithmetic`, ...); size: rows of the training set, null for no end;
    validation_size: rows of the validation set; seed: of both; the other arguments go to the task.
    """

    needs_answer = True
    libraries = ("reasoning-gym",)

    def __init__(self, task: str, size: int | None = None, validation_size: int = 100, seed: int = 0, **options: Any) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # from a library that it imports
            import reasoning_gym
            from reasoning_gym.factory import DATASETS

        if task not in DATASETS:
            near = difflib.get_close_matches(task, DATASETS, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else "reasoning_gym.factory.DATASETS lists the tasks"
            raise ValueError(f"task={task!r} is not one of reasoning-gym's; {hint}")
        sizes = [validation_size] if size is None else [size, validation_size]
        if not 0 <= seed < _MOST or not all(1 <= n <= _MOST for n in sizes):
            raise ValueError(
                f"seed={seed}, size={size}, validation_size={validation_size}: each must be below {_MOST}, sizes above 0"
            )
        self._rows: dict[Split, int | None] = {"train": size, "validation": validation_size}
        first_seed: dict[Split, int] = {"train": seed, "validation": seed + _SEEDS}

        def chunk(split: Split, number: int) -> Any:
            return reasoning_gym.create_dataset(task, size=_CHUNK, seed=first_seed[split] + number * _CHUNK, **options)

        self._chunk = lru_cache(maxsize=8)(chunk)
        self._score_answer = chunk("train", 0).score_answer

    def rows(self, split: Split) -> int | None:
        return self._rows[split]

    def generate(self, row: int, split: Split) -> dict[str, Any]:
        number, index = divmod(row % _MOST, _CHUNK)
        item = self._chunk(split, number)[index]
        return {"prompt": item["question"], "answer": item["answer"], "metadata": item["metadata"]}

    def score(self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]) -> Score:
        tagged = _TAGGED.findall(completion)
        text = (tagged[-1] if tagged else completion).strip()
        entry = {"question": prompt, "answer": answer, "metadata": metadata["metadata"]}
        return float(self._score_answer(text, entry))
