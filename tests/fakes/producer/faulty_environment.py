"""The tiny run's task, with prompts that go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from producer.environments.base import Generate, RolloutRequest, Split
from producer.environments.tiny_inc import TinyInc
from schemas.records.group import Trajectory

CAUSE = "the judge is on holiday"


class Faulty(TinyInc):
    """Rows of `raises` fail after their completion, those of `hangs` never end, those of `long` exceed the model's length.

    `always`: all rows raise.
    """

    def __init__(
        self, raises: Sequence[int] = (), hangs: Sequence[int] = (), long: Sequence[int] = (), always: bool = False
    ) -> None:
        super().__init__()
        self._raises = frozenset(raises)
        self._hangs = frozenset(hangs)
        self._long = frozenset(long)
        self._always = always

    def generate(self, row: int, split: Split) -> dict[str, Any]:
        made = super().generate(row, split)
        return {**made, "prompt": made["prompt"] * 100} if row in self._long else made

    async def rollout(self, request: RolloutRequest, generate: Generate) -> Trajectory:
        trajectory = await super().rollout(request, generate)
        if request.prompt.row in self._hangs:
            await asyncio.Event().wait()
        if self._always or request.prompt.row in self._raises:
            raise RuntimeError(CAUSE)
        return trajectory
