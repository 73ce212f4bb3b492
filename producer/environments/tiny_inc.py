"""The task of the tiny run: add one to every digit, modulo 10. `3194>` becomes `4205` and the end token.

One string in seven, by hash, is held out: validation uses 200 of those, training and the model's warm-up none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import Any

from producer.engine.protocol import Completion, Ending
from producer.environments.base import RolloutRequest, Score, Split
from producer.environments.single_turn import SingleTurn

VALIDATION_ROWS = 200
_HELD_OUT_ONE_IN = 7
_NOT_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=b"weir.inc").digest(), "little")


def held_out(digits: str) -> bool:
    """Whether this string of digits is kept out of training."""
    return _hash(digits) % _HELD_OUT_ONE_IN == 0


def increment(digits: str) -> str:
    """The right answer to `digits`."""
    return "".join(str((int(c) + 1) % 10) for c in digits)


@lru_cache(maxsize=4)
def _validation_strings(length: int) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for n in count():
        text = f"{_hash(f'validation/{n}') % 10**length:0{length}d}"
        if held_out(text):
            found[text] = None
            if len(found) == VALIDATION_ROWS:
                return tuple(found)
    raise AssertionError("unreachable: count() has no end")


class TinyInc(SingleTurn):
    """Reward: characters right by position / max(len(answer), len(output)). A missing end token is one character too many.

    Validation scores 1 for the exact answer with its end token, else 0.
    """

    needs_answer = True
    in_thread = False

    def __init__(self, digits: int = 4) -> None:
        super().__init__()
        if not 4 <= digits <= 12:
            raise ValueError(f"digits={digits}, allowed 4 to 12")
        self._digits = digits

    def rows(self, split: Split) -> int | None:
        return VALIDATION_ROWS if split == "validation" else None

    def generate(self, row: int, split: Split) -> dict[str, Any]:
        text = _validation_strings(self._digits)[row] if split == "validation" else self._train_string(row)
        return {"prompt": text + ">", "answer": increment(text)}

    def _train_string(self, row: int) -> str:
        for n in count():
            text = f"{_hash(f'train/{row}/{n}') % 10**self._digits:0{self._digits}d}"
            if not held_out(text):
                return text
        raise AssertionError("unreachable: count() has no end")

    def text(self, request: RolloutRequest, completion: Completion) -> str:
        """One character for each token before the end token; a token that is no character counts as a wrong one."""
        stopped = completion.ending is Ending.STOP
        ids = list(completion.token_ids)
        pieces = [str(request.tokenizer.decode([i], skip_special_tokens=False)) for i in (ids[:-1] if stopped else ids)]
        text = "".join(piece if len(piece) == 1 else _NOT_A_CHARACTER for piece in pieces)
        if stopped:
            return text
        return text.ljust(self._digits + 1, _NOT_A_CHARACTER)

    def score(self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]) -> Score:
        right: int = sum(a == b for a, b in zip(completion, answer, strict=False))
        return right / max(len(completion), len(answer))

    def score_validation(self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]) -> Score:
        return {"exact": float(completion == answer)}
