"""Adding two small numbers, asked in plain language: a task that a small chat model gets right now and then.

One pair in five, by hash, is held out; validation uses 48 of those.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from producer.environments.base import Score, Split
from producer.environments.single_turn import SingleTurn

VALIDATION_ROWS = 48
_HELD_OUT_ONE_IN = 5
_INTEGER = re.compile(r"-?\d+")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=b"weir.add").digest(), "little")


class Addition(SingleTurn):
    """Reward: 1 if the last integer of the completion is the sum, else 0. Partial credit would make a policy settle for it.

    largest: both numbers are drawn from 1 to this.
    """

    needs_answer = True
    in_thread = False

    def __init__(self, largest: int = 20) -> None:
        super().__init__()
        if not 20 <= largest <= 1000:
            raise ValueError(f"largest={largest}, allowed 20 to 1000")
        pairs = [(a, b) for a in range(1, largest + 1) for b in range(1, largest + 1)]
        pairs.sort(key=lambda pair: _hash(f"{pair[0]}+{pair[1]}"))
        cut = len(pairs) // _HELD_OUT_ONE_IN
        self._held_out, self._train = pairs[:cut][:VALIDATION_ROWS], pairs[cut:]

    def rows(self, split: Split) -> int | None:
        return len(self._held_out) if split == "validation" else None

    def generate(self, row: int, split: Split) -> dict[str, Any]:
        if split == "validation":
            a, b = self._held_out[row]
        else:
            a, b = self._train[_hash(f"train/{row}") % len(self._train)]
        return {"prompt": f"What is {a} + {b}? Answer with just the number.", "answer": a + b}

    def score(self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]) -> Score:
        integers = _INTEGER.findall(completion)
        return float(bool(integers) and int(integers[-1]) == int(answer))
