"""What the producer needs of an inference engine, and nothing else.

Concurrency is the engine's job: `generate` is called from one asyncio loop for many requests at once and never blocks it. The
other methods are awaited one at a time, by the producer's state machine. `VllmEngine` is the real one, `ScriptedEngine` computes
deterministic tokens for tests of scheduling and faults; one contract suite runs over both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from schemas.records.group import Span
from schemas.weights.transports.protocol import Rendezvous


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request, as vLLM names them. `max_new_tokens` is what is left for this call."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int | None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


class Ending(StrEnum):
    """Why one `generate` call ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Completion:
    """What the engine sampled. One log-probability per token, of the distribution sampled from (after temperature, top-p, top-k).

    `spans` cover [0, len(token_ids)), each with the version that sampled its tokens.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: tuple[Span, ...]
    ending: Ending


@dataclass(frozen=True, slots=True)
class TransferOffer:
    """One round's transfer, as the control state announces it, for one member.

    rank_offset: rank of the engine's first worker in the transfer group; world: ranks of the group, the sender (0) included.
    """

    version: int
    at: Rendezvous
    world: int
    rank_offset: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """New weights, complete and served from now on. `digest` is that of the received bytes, `probe_gap` the largest difference
    between the engine's and the learner's log-probabilities on the probe sequence."""

    version: int
    digest: str
    probe_gap: float


class EngineDead(Exception):
    """The engine cannot continue; the producer must leave and start again."""


class Engine(Protocol):
    """Six methods. `version` is the label of the weights served: -1 until the first ones are loaded."""

    @property
    def world_size(self) -> int:
        """Workers that take part in a transfer, one rank each."""
        ...

    @property
    def version(self) -> int: ...

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Sample one completion. Cancelling the awaiting task aborts the request in the engine.

        Raises:
            EngineDead: the engine died; ValueError: the prompt does not fit the model.
        """
        ...

    def progress(self) -> dict[str, int]:
        """Tokens generated so far for every running request, by request id, and under "" the engine's total since its start.

        Thread-safe and cheap: the heartbeat thread calls it.
        """
        ...

    async def pause(self, *, drop_caches: bool) -> None:
        """Freeze all running requests where they are; new ones queue. `drop_caches`: their context is computed again later."""
        ...

    async def resume(self) -> None: ...

    async def receive(self, offer: TransferOffer) -> Loaded:
        """Take part in a transfer: receive everything, check the digest, load layer by layer, score the probe.

        Called while paused. The label changes to `offer.version` only when all of it succeeded.

        Raises:
            schemas.errors.TransferError: nothing was loaded, the old weights stay in use;
            EngineDead: the weights are no longer complete.
        """
        ...

    async def close(self) -> None: ...


Progress = Mapping[str, int]


def tokens_by_key(progress: Progress) -> dict[str, int]:
    """Tokens of running requests, summed over the requests of one group. Request ids are `<kind>/<record key>/t<n>/...`."""
    totals: dict[str, int] = {}
    for request_id, tokens in progress.items():
        key, found, _ = request_id.partition("/t")
        if found:
            totals[key] = totals.get(key, 0) + tokens
    return totals
