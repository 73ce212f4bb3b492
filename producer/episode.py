"""An episode is one try at one trajectory: its calls of the engine, what is left of its bounds, when it last made progress.

Progress is the start or the end of an engine call, that is an answer of the environment or of the engine, and every token that
the engine samples for the episode. So a long one is never punished, and a stuck one is found wherever it is stuck.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from producer.engine.protocol import Completion, Engine, EngineDead, Sampling
from producer.environments.base import ContextFull, RolloutRequest

Clock = Callable[[], float]


class EngineRefused(Exception):
    """The engine reports that a prompt does not fit the model. `turn` counts from 0."""

    def __init__(self, turn: int, why: str) -> None:
        self.turn = turn
        super().__init__(why)


class Episode:
    """`generate` is handed to the environment; who watches the episode asks for `idle_s`.

    key: prefix of the engine's request ids, which end in the turn.
    """

    def __init__(
        self, key: str, request: RolloutRequest, engine: Engine, sampling: Sampling, priority: int, clock: Clock
    ) -> None:
        self._key = key
        self._request = request
        self._engine = engine
        self._sampling = sampling
        self._priority = priority
        self._clock = clock
        self._turns = 0
        self._generated = 0
        self._running: set[str] = set()
        self._seen: tuple[int, int] = (0, 0)
        self._since = clock()

    async def generate(self, prompt_ids: Sequence[int], max_new_tokens: int | None = None) -> Completion:
        """One completion after `prompt_ids`, within what is left of the trajectory's tokens and of the model's length."""
        ids = [int(i) for i in prompt_ids]
        left = min(self._request.max_new_tokens - self._generated, self._request.max_total_length - len(ids))
        if max_new_tokens is not None:
            left = min(left, max_new_tokens)
        if left < 1:
            raise ContextFull(
                f"no token can be sampled after {len(ids)}: {self._generated} of {self._request.max_new_tokens} generated, "
                f"at most {self._request.max_total_length} in all"
            )
        turn = self._turns
        self._turns += 1
        name = f"{self._key}/g{turn}"
        self._running.add(name)
        self._since = self._clock()
        try:
            completion = await self._engine.generate(
                name, ids, dataclasses.replace(self._sampling, max_new_tokens=left), self._priority
            )
        except EngineDead:
            raise
        except ValueError as error:
            raise EngineRefused(turn, str(error)) from error
        finally:
            self._running.discard(name)
            self._since = self._clock()
        self._generated += len(completion.token_ids)
        return completion

    def idle_s(self, progress: Mapping[str, int], frozen: bool) -> float:
        """Seconds without progress, given the engine's token counts.

        A request that waits for its first token makes progress while the engine samples for others. `frozen`: the engine is
        paused, so no token can be expected.
        """
        own = [progress.get(name, 0) for name in self._running]
        total = progress.get("", 0) if 0 in own else 0
        seen = (self._generated + sum(own), total)
        if seen != self._seen or (self._running and frozen):
            self._since = self._clock()
        self._seen = seen
        return self._clock() - self._since

    def whereabouts(self) -> str:
        """For a message: what the episode is waiting for."""
        waits = f"the engine (turn {self._turns - 1})" if self._running else f"the environment (after {self._turns} turns)"
        return f"waiting for {waits}, {self._seen[0]} tokens generated"
