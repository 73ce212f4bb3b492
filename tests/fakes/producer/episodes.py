"""One episode of an environment without an engine: what is asked for, what the engine replies, and the trajectory."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from producer.engine.protocol import Completion, Ending
from producer.environments.base import Environment, Prompt, RolloutRequest
from schemas.records.group import Span, Trajectory
from tests.fakes.producer.word_tokenizer import EOS, word_tokenizer


def make_rollout_request(
    text: str = "q", max_new_tokens: int = 20, max_total_length: int = 50, kind: str = "rollout", **fields: Any
) -> RolloutRequest:
    """`fields`: of the prompt."""
    tokenizer = word_tokenizer()
    prompt = Prompt(row=0, ids=np.array(tokenizer.encode(text), dtype="<u4"), text=text, **fields)
    return RolloutRequest(prompt, kind, 0, max_new_tokens, max_total_length, tokenizer)  # type: ignore[arg-type]


def make_completion(text: str, version: int = 1, ending: Ending = Ending.STOP) -> Completion:
    ids = word_tokenizer().encode(text, add_special_tokens=False) + ([EOS] if ending is Ending.STOP else [])
    return Completion(ids, [-0.25] * len(ids), (Span(version, 0, len(ids)),), ending)


async def rolled_out(environment: Environment, asked: RolloutRequest, reply: Completion) -> Trajectory:
    """The trajectory when every `generate` gets this reply."""

    async def generate(prompt_ids: Any, max_new_tokens: int | None = None) -> Completion:
        return reply

    return await environment.rollout(asked, generate)


def trajectory_of(environment: Environment, asked: RolloutRequest, reply: Completion) -> Trajectory:
    """The same, on an event loop of its own."""
    return asyncio.run(rolled_out(environment, asked, reply))
