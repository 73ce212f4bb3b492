"""An engine that says what a test gives it: one reply a call, a blocked call, or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from producer.engine.protocol import Completion, Ending, Loaded, Sampling, TransferOffer
from schemas.records.group import Span
from tests.fakes.producer.word_tokenizer import EOS


@dataclass(frozen=True)
class Call:
    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    priority: int


Reply = Callable[[Call], "str | BaseException | asyncio.Event"]


@dataclass
class ReplyEngine:
    """`reply(call)`: the text to answer with (an end token follows if there is room), an exception to raise, or an event that
    the call waits for before it answers with `later`."""

    tokenizer: Any
    reply: Reply
    later: str = "ok"
    version: int = 3
    calls: list[Call] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    total: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def world_size(self) -> int:
        return 1

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, priority: int = 0) -> Completion:
        call = Call(request_id, list(prompt_ids), sampling, priority)
        self.calls.append(call)
        self.tokens[request_id] = 0
        answer = self.reply(call)
        self.started.set()
        try:
            if isinstance(answer, BaseException):
                raise answer
            if isinstance(answer, asyncio.Event):
                await answer.wait()
                answer = self.later
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.aborted.append(request_id)
            raise
        finally:
            del self.tokens[request_id]
        ids = [*self.tokenizer.encode(answer, add_special_tokens=False), EOS]
        kept = ids[: sampling.max_new_tokens]
        self.total += len(kept)
        ending = Ending.STOP if len(kept) == len(ids) else Ending.LENGTH
        return Completion(kept, [-0.5] * len(kept), (Span(self.version, 0, len(kept)),), ending)

    def progress(self) -> dict[str, int]:
        return {**self.tokens, "": self.total}

    async def pause(self, *, drop_caches: bool) -> None:
        raise NotImplementedError

    async def resume(self) -> None:
        raise NotImplementedError

    async def receive(self, offer: TransferOffer) -> Loaded:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
