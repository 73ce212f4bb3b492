"""An engine without a model: deterministic tokens, scripted delays and faults, real transfers.

Tokens, log-probabilities and length are a pure function of the prompt and the request id (with `by_draw`: of the part of the id
that stays the same when a draw is rolled out again). Weights are received over the same gloo transfers as the real engine's,
checked, and kept; nothing is computed from them, so the probe gap is 0. It starts at once, and imports torch with the first
transfer.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from producer.engine.protocol import Completion, Ending, EngineDead, Loaded, Sampling, TransferOffer
from producer.refit.staging import Staged, receive
from schemas.config.base import Section
from schemas.config.dispatch import RefitConfig
from schemas.config.grpo import GenerationConfig
from schemas.config.model import ModelConfig
from schemas.config.producer import ProducerConfig
from schemas.errors import TransferError
from schemas.failpoints import reach
from schemas.records.group import Span
from schemas.weights.plan import WeightPlan, make_plan, model_config_value, tensor_index
from schemas.weights.transports.find import for_member

_AGAIN = re.compile(r"/[ar]\d+(?=/)")
"""Attempt and try in a request id such as `rollout/v00000012/s0003/d0/a1/t5/r0/g0`."""


class Script(Section):
    """`producer.scripted`: how the engine misbehaves. The list of a fault holds request numbers, counted from 0."""

    seconds_per_token: float = Field(0.0, ge=0)
    """How long each token takes."""
    tokens: int | None = Field(None, ge=1)
    """Length of every completion (bounded by the request); null: between 1 and the bound, by hash."""
    fail_on: float | list[int] = 0.0
    """Requests that raise RuntimeError after half their tokens: a share of all, chosen by hash, or a list."""
    hang_on: float | list[int] = 0.0
    """Requests that make no progress after half their tokens, until they are cancelled."""
    die_on: list[int] = Field(default_factory=list)
    """Requests that kill the engine after half their tokens."""
    fail_receive: list[int] = Field(default_factory=list)
    """Transfers, counted from 0, that fail before anything is received."""
    load_s: float = Field(0.0, ge=0)
    """How long loading takes once everything was received."""
    by_draw: bool = False
    """Every attempt and every try at a trajectory gives the same tokens: two runs on the same prompts train alike."""


class ScriptedEngine:
    """`producer.engine.protocol.Engine` for tests of scheduling and faults."""

    def __init__(self, model: ModelConfig, generation: GenerationConfig, producer: ProducerConfig, refit: RefitConfig) -> None:
        """Raises: ConfigError: `model.path` is no checkpoint folder; pydantic.ValidationError: an unknown key of the script."""
        self.world_size = 1
        self.version = -1
        self.plan: WeightPlan = make_plan(tensor_index(model.path), model.dtype, refit.bucket_mib)
        self.vocab_size = int(model_config_value(model.path, "vocab_size"))
        self.max_model_len = model.max_total_sequence_length
        self.weights: Staged | None = None
        self._script = Script(**producer.scripted)
        self._backend = refit.backend
        self._moving = asyncio.Event()
        self._moving.set()
        self._dead: str | None = None
        self._died = asyncio.Event()
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        self._generated = 0
        self._requests = 0
        self._transfers = 0

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, priority: int = 0) -> Completion:
        self._check_alive()
        room = self.max_model_len - len(prompt_ids)
        if not prompt_ids or room < 1 or not 0 <= min(prompt_ids) <= max(prompt_ids) < self.vocab_size:
            raise ValueError(f"a prompt of {len(prompt_ids)} tokens does not fit the model, or is not of its vocabulary")
        if request_id in self._running:
            raise ValueError(f"request {request_id} is running already")
        number, self._requests = self._requests, self._requests + 1
        bound = min(sampling.max_new_tokens, room)
        source = _AGAIN.sub("", request_id) if self._script.by_draw else request_id
        tokens, logprobs = _completion(prompt_ids, source, min(self._script.tokens or bound, bound), self.vocab_size)
        if self._script.tokens is None:
            length = 1 + _share(source, "length", bound)
            tokens, logprobs = tokens[:length], logprobs[:length]
        with self._lock:
            self._running[request_id] = 0
        try:
            spans = await self._produce(request_id, number, len(tokens))
        finally:
            with self._lock:
                del self._running[request_id]
        ending = Ending.LENGTH if len(tokens) == bound else Ending.STOP
        return Completion(tokens, logprobs, spans, ending)

    async def _produce(self, request_id: str, number: int, length: int) -> tuple[Span, ...]:
        spans: list[Span] = []
        for position in range(length):
            await asyncio.sleep(self._script.seconds_per_token)
            if position == length // 2:
                reach("producer.rollout")
                await self._fault(request_id, number)
            # No await between the gate and the count: the token is of the version that it is labelled with.
            await self._moving.wait()
            self._check_alive()
            with self._lock:
                self._running[request_id] += 1
                self._generated += 1
            if spans and spans[-1].version == self.version:
                spans[-1] = Span(self.version, spans[-1].start, position + 1)
            else:
                spans.append(Span(self.version, position, position + 1))
        return tuple(spans)

    async def _fault(self, request_id: str, number: int) -> None:
        if number in self._script.die_on:
            self._die("scripted death")
        if _chosen(self._script.fail_on, request_id, number, "fail"):
            raise RuntimeError(f"scripted failure of {request_id}")
        if _chosen(self._script.hang_on, request_id, number, "hang"):
            # Ends by cancellation, or with the engine.
            await self._died.wait()
            self._check_alive()

    def progress(self) -> dict[str, int]:
        with self._lock:
            return {**self._running, "": self._generated}

    async def pause(self, *, drop_caches: bool) -> None:
        self._check_alive()
        self._moving.clear()

    async def resume(self) -> None:
        self._check_alive()
        self._moving.set()

    async def receive(self, offer: TransferOffer) -> Loaded:
        self._check_alive()
        if self._moving.is_set():
            raise ValueError("receive is called while paused")
        number, self._transfers = self._transfers, self._transfers + 1
        if number in self._script.fail_receive:
            raise TransferError(f"version {offer.version}: scripted failure")
        staged = await asyncio.to_thread(self._stage, offer)
        reach("producer.received")
        await asyncio.sleep(self._script.load_s)
        self.weights = staged
        self.version = offer.version
        return Loaded(offer.version, staged.digest, 0.0)

    def _stage(self, offer: TransferOffer) -> Staged:
        transport = for_member(self._backend, offer.at)
        if transport.needs_gpu:
            raise TransferError("the scripted engine has no GPU to receive with: set refit.backend to gloo")
        group = transport.join(offer.at, offer.rank_offset, offer.world, offer.timeout_s, "cpu")
        try:
            return receive(self.plan, group.broadcast)
        finally:
            group.close()

    async def close(self) -> None:
        if self._dead is None:
            self._dead = "the engine was closed"
        self._died.set()
        self._moving.set()

    def _die(self, reason: str) -> None:
        self._dead = reason
        self._died.set()
        self._moving.set()
        self._check_alive()

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDead(self._dead)


def _completion(prompt_ids: Sequence[int], request_id: str, length: int, vocab_size: int) -> tuple[list[int], list[float]]:
    """`length` tokens and log-probabilities (finite, below 0) for a request."""
    seed = hashlib.shake_128(request_id.encode() + b"\0" + np.asarray(prompt_ids, dtype="<u4").tobytes())
    numbers = np.frombuffer(seed.digest(8 * length), dtype="<u4").reshape(2, length)
    logprobs = -(1 + numbers[1] % 4096).astype(np.float32) / np.float32(1024)
    return (numbers[0] % vocab_size).tolist(), logprobs.tolist()


def _share(request_id: str, salt: str, bound: int) -> int:
    """A number in [0, bound) by hash."""
    return int.from_bytes(hashlib.blake2b(f"{salt}/{request_id}".encode(), digest_size=8).digest(), "little") % bound


def _chosen(which: float | list[int], request_id: str, number: int, salt: str) -> bool:
    if isinstance(which, list):
        return number in which
    return _share(request_id, salt, 1 << 30) < which * (1 << 30)
