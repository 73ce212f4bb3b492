"""vLLM's engine, stopped between two chosen steps, and what it sampled computed again by a model that switches its weights."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from producer.engine import Sampling
from schemas.group import Span
from tests.fakes.switched_model import VOCAB, SwitchedModel

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

    def gap(self, *weights, start=0, end=None):
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


def largest(ours, theirs):
    assert len(ours) > 0
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


class Bench:
    """The engine, and a look at where it stands."""

    def __init__(self, engine, model):
        self.engine = engine
        self.model = model
        self.cached = {}
        """Prompt tokens that a finished request took from the prefix cache."""
        core = engine._core
        finish = type(core)._finish

        def noted(output):
            self.cached[output.request_id] = output.num_cached_tokens
            finish(core, output)

        core._finish = noted

    @property
    def version(self):
        return self.engine.version

    @property
    def scheduler(self):
        return self.engine._core._scheduler

    @property
    def free_blocks(self):
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def residue(self):
        """Requests left in our part of the engine and in vLLM's two halves, and free blocks."""
        core = self.engine._core
        states = core._llm.output_processor.request_states
        return len(core._running), len(self.scheduler.requests), len(states), self.free_blocks

    def computed(self, name):
        """Positions of this request whose keys and values are in the cache."""
        return self.scheduler.requests[self.engine._core._running[name].internal_id].num_computed_tokens

    def start(self, name, prompt, tokens, temperature=1.0):
        """A task: one request of so many tokens."""

        async def sample():
            c = await self.engine.generate(name, prompt, Sampling(tokens, temperature, 1.0, None))
            assert len(c.token_ids) == tokens
            return Sampled(self.model, prompt, c.token_ids, c.logprobs, c.spans, temperature)

        return asyncio.create_task(sample())

    async def stop_when(self, condition):
        """From now on: the engine stops after the first step after which the condition holds. Await the result for it."""
        core, stopped = self.engine._core, Future()

        def step():
            type(core).step(core)
            try:
                if not condition():
                    return
                core.pause(drop_caches=False)
                del core.step
                stopped.set_result(None)
            except BaseException as error:
                stopped.set_exception(error)
                raise

        def install():
            core.step = step

        await asyncio.wrap_future(self.engine._thread.call(install))
        return asyncio.wait_for(asyncio.wrap_future(stopped), WAIT_S)

    async def stop_at(self, tokens, names):
        """Stop as soon as all of these requests have so many tokens. How many each of all requests has."""
        await (await self.stop_when(lambda: min(self.engine.progress().get(name, 0) for name in names) >= tokens))
        return self.engine.progress()

    async def load(self, seed, version=None):
        """New weights into the engine, which stands still."""
        with self.model.sending(seed, self.version + 1 if version is None else version) as offer:
            loaded = await self.engine.receive(offer)
        assert loaded.probe_gap <= EXACT

    async def refit(self, seed, drop_caches=RECOMPUTE, version=None):
        await self.engine.pause(drop_caches=drop_caches)
        await self.load(seed, version)
        await self.engine.resume()


def prompt_of(length, seed):
    return np.random.default_rng([length, seed]).integers(0, VOCAB, length).tolist()


async def eventually(condition):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)
