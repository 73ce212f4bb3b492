"""vLLM's engine, stopped between two chosen steps, and what it sampled computed again by a model that switches its weights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from producer.engine.protocol import Sampling
from schemas.records.group import Span
from tests.fakes.producer.switched_model import VOCAB, SwitchedModel

if TYPE_CHECKING:
    from producer.engine.vllm_engine import VllmEngine

WAIT_S = 60.0
EXACT = 1e-4
"""Largest difference of log-probabilities that is rounding, in float32."""
KEEP, RECOMPUTE = False, True
"""Values of `drop_caches`."""


@dataclass(frozen=True)
class Sampled:
    """One call of the engine, to be computed again."""

    model: SwitchedModel
    prompt: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float]
    spans: tuple[Span, ...]
    temperature: float

    def gap(self, *weights: int, start: int = 0, end: int | None = None) -> float:
        """Largest difference of the tokens [start, end) from those of a model whose weights change.

        weights: seeds, and between two of them the token that the later ones are the first to sample. One below 0 lies in the
        prompt: its position there, less that of the prompt's last token.
        """
        sequence = [*self.prompt, *self.tokens]
        first = len(self.prompt) - 1
        ends = [first + token for token in weights[1::2]] + [len(sequence)]
        parts = list(zip(weights[::2], ends, strict=True))
        expected = self.model.logprobs(sequence, parts, self.temperature)[first:]
        return largest(self.logprobs[start:end], expected[start:end])


def largest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    assert len(ours) > 0
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


class Bench:
    """The engine, and a look at where it stands."""

    def __init__(self, engine: VllmEngine, model: SwitchedModel) -> None:
        self.engine = engine
        self.model = model
        self.cached: dict[str, int] = {}
        """Prompt tokens that a finished request took from the prefix cache."""
        stepper: Any = engine._stepper  # some of its methods are replaced
        finish = type(stepper)._finish

        def noted(output: Any) -> None:
            self.cached[output.request_id] = output.num_cached_tokens
            finish(stepper, output)

        stepper._finish = noted

    @property
    def version(self) -> int:
        return self.engine.version

    @property
    def scheduler(self) -> Any:
        return self.engine._stepper._scheduler

    @property
    def free_blocks(self) -> int:
        free: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return free

    def residue(self) -> tuple[int, int, int, int]:
        """Requests left in our part of the engine and in vLLM's two halves, and free blocks."""
        stepper = self.engine._stepper
        states = stepper._llm.output_processor.request_states
        return len(stepper._running), len(self.scheduler.requests), len(states), self.free_blocks

    def computed(self, name: str) -> int:
        """Positions of this request whose keys and values are in the cache."""
        computed: int = self.scheduler.requests[self.engine._stepper._running[name].internal_id].num_computed_tokens
        return computed

    def start(self, name: str, prompt: Sequence[int], tokens: int, temperature: float = 1.0) -> asyncio.Task[Sampled]:
        """A task: one request of so many tokens."""

        async def sample() -> Sampled:
            c = await self.engine.generate(name, prompt, Sampling(tokens, temperature, 1.0, None))
            assert len(c.token_ids) == tokens
            return Sampled(self.model, prompt, c.token_ids, c.logprobs, c.spans, temperature)

        return asyncio.create_task(sample())

    async def stop_when(self, condition: Callable[[], bool]) -> Awaitable[None]:
        """From now on: the engine stops after the first step after which the condition holds. Await the result for it."""
        stepper: Any = self.engine._stepper
        stopped: Future[None] = Future()

        def step() -> None:
            type(stepper).step(stepper)
            try:
                if not condition():
                    return
                stepper.pause(drop_caches=False)
                del stepper.step
                stopped.set_result(None)
            except BaseException as error:
                stopped.set_exception(error)
                raise

        def install() -> None:
            stepper.step = step

        await asyncio.wrap_future(self.engine._thread.call(install))
        return asyncio.wait_for(asyncio.wrap_future(stopped), WAIT_S)

    async def stop_at(self, tokens: int, names: Collection[str]) -> dict[str, int]:
        """Stop as soon as all of these requests have so many tokens. How many each of all requests has."""
        await (await self.stop_when(lambda: min(self.engine.progress().get(name, 0) for name in names) >= tokens))
        return self.engine.progress()

    async def load(self, seed: int, version: int | None = None) -> None:
        """New weights into the engine, which stands still."""
        with self.model.sending(seed, self.version + 1 if version is None else version) as offer:
            loaded = await self.engine.receive(offer)
        assert loaded.probe_gap <= EXACT

    async def refit(self, seed: int, drop_caches: bool = RECOMPUTE, version: int | None = None) -> None:
        await self.engine.pause(drop_caches=drop_caches)
        await self.load(seed, version)
        await self.engine.resume()


def prompt_of(length: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng([length, seed]).integers(0, VOCAB, length).tolist()
    return ids
