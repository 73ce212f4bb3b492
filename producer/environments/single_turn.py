"""Environments of one turn: sample once, score the text.

The shortest form is a function `score(prompt, completion, answer, metadata) -> float | dict[str, float]`, named in the config as
`module:function`. A plain function runs in a thread, an async one on the producer's loop. At most `THREADS` plain calls run at a
time. One that never returns takes its thread with it; scoring that may hang belongs into a `worker_pool`.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from producer.engine.protocol import Completion
from producer.environments.base import Environment, Generate, RolloutRequest, Score, TrajectoryBuilder
from schemas.records.group import Trajectory

ScoreFunction = Callable[..., Score | Awaitable[Score]]
THREADS = 16


class SingleTurn(Environment):
    """Base of environments that sample once. `score` is a method, plain or async."""

    in_thread: bool = True
    """Whether a plain `score` runs in a thread. False only for scoring that takes microseconds."""

    def __init__(self) -> None:
        # The interpreter would join these threads at its exit, a hung one for ever: `producer.__main__` does not exit that way.
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="score")

    @abstractmethod
    def score(self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]) -> Score | Awaitable[Score]:
        """The reward of `completion`.

        prompt: the text the engine was given, chat template included; completion: the decoded text without special tokens;
        answer and metadata: from the row.
        """

    def score_validation(
        self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]
    ) -> Score | Awaitable[Score]:
        """The score in validation: the same as in training, unless a class overrides it."""
        return self.score(prompt, completion, answer, metadata)

    def text(self, request: RolloutRequest, completion: Completion) -> str:
        """The text to score."""
        return str(request.tokenizer.decode(list(completion.token_ids), skip_special_tokens=True))

    async def rollout(self, request: RolloutRequest, generate: Generate) -> Trajectory:
        builder = TrajectoryBuilder(request)
        completion = await generate(builder.context)
        builder.add(completion)
        prompt = request.prompt
        function = self.score_validation if request.kind == "validation" else self.score
        return builder.finish(
            await self._call(function, prompt.text, self.text(request, completion), prompt.answer, prompt.metadata)
        )

    async def _call(self, function: ScoreFunction, *args: Any) -> Score:
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(self.score)
        if is_async or not self.in_thread:
            result = function(*args)
        else:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, _returned, function, args)
        if inspect.isawaitable(result):
            result = await result
        return result

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _returned(function: ScoreFunction, args: tuple[Any, ...]) -> Score | Awaitable[Score]:
    try:
        return function(*args)
    except StopIteration as stop:  # a future cannot carry it
        raise RuntimeError(f"StopIteration from {function!r}") from stop


class FunctionEnvironment(SingleTurn):
    """A user's score function as an environment. `args` are passed by name, after the four positional arguments."""

    def __init__(self, function: ScoreFunction, args: Mapping[str, Any]) -> None:
        super().__init__()
        self.function = function
        self._args = dict(args)
        self._is_async = inspect.iscoroutinefunction(function)

    def score(self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]) -> Score | Awaitable[Score]:
        return self.function(prompt, completion, answer, metadata, **self._args)

    async def _call(self, function: ScoreFunction, *args: Any) -> Score:
        if self._is_async:
            result = function(*args)
            assert inspect.isawaitable(result)
            return await result
        return await super()._call(function, *args)
