"""The environment interface: a prompt and a way to sample in, one finished and scored trajectory out.

`rollout` is called once per trajectory and may call `generate` as often as it likes: several turns, tools, another try. Tokens
that it inserts between the engine's carry mask 0. An exception is a failed trajectory, never a reward of zero; `PromptRefused`
means that no trajectory of this prompt can succeed, so that the slot gets another prompt instead of another try.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from producer.engine.protocol import Completion, Ending
from schemas.records.blobs import Array
from schemas.records.group import FinishReason, Kind, Span, Trajectory

Split = Literal["train", "validation"]
Score = float | Mapping[str, float]
"""A reward, or its named components; their sum is the reward."""


class PromptRefused(Exception):
    """This prompt cannot be used, however often it is tried; the slot gets another one."""


class ContextFull(ValueError):
    """No further token can be added or sampled: the trajectory has reached its bound."""


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> Any: ...

    def apply_chat_template(self, conversation: Any, *, tokenize: bool = True, add_generation_prompt: bool = False) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A row as the engine and the environment see it.

    ids: uint32 [P]; text: what `ids` encode, chat template included; messages: the chat it came from, if it was one;
    answer: what the row holds under the answer key, None without one; metadata: all other columns.
    """

    row: int
    ids: Array
    text: str
    answer: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RolloutRequest:
    """A request for one trajectory.

    index: its place in the group, 0 to G-1; max_new_tokens: generated tokens of the whole trajectory, at most;
    max_total_length: prompt and everything after it, in tokens, at most.
    """

    prompt: Prompt
    kind: Kind
    index: int
    max_new_tokens: int
    max_total_length: int
    tokenizer: Tokenizer


class Generate(Protocol):
    """Samples one completion after `prompt_ids`; bounded by what is left of the trajectory, and by `max_new_tokens` if given.

    Raises:
        ContextFull: nothing is left.
    """

    async def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int | None = None) -> Completion: ...


class Environment(ABC):
    """Base of all environments. Only `rollout` has to be written; `generate` and `rows` make it a source of prompts too."""

    needs_answer: bool = False
    """Whether a row without an answer is an error."""
    libraries: tuple[str, ...] = ()
    """Distributions whose versions are part of the digest, because scores depend on them."""

    @abstractmethod
    async def rollout(self, request: RolloutRequest, generate: Generate) -> Trajectory:
        """Run one episode to its end.

        Raises:
            PromptRefused: the prompt is at fault; anything else: this trajectory has failed.
        """

    def generate(self, row: int, split: Split) -> dict[str, Any]:
        """Row `row` of the environment's own data: `prompt`, `answer` and whatever else scoring needs. A pure function of
        its arguments and the constructor's, so that every producer makes the same row."""
        raise NotImplementedError(f"{type(self).__name__} generates no rows")

    def rows(self, split: Split) -> int | None:
        """How many rows `generate` has; None: no end. Validation needs an end."""
        return None

    @property
    def generates(self) -> bool:
        return type(self).generate is not Environment.generate

    async def close(self) -> None:
        """Release what the environment holds. Called once, after the last rollout."""
        return None


def named_rewards(score: Score) -> dict[str, float]:
    """A score as named components; a plain number is the component `reward`.

    Raises:
        TypeError, ValueError: not a number, not finite, or no component at all.
    """
    parts = dict(score) if isinstance(score, Mapping) else {"reward": score}
    if not parts:
        raise ValueError("the score has no component")
    for name, value in parts.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of reward component {name!r} is not a string")
        if not isinstance(value, bool | int | float | np.integer | np.floating | np.bool_):
            raise TypeError(f"reward component {name} is {value!r}, not a number")
        if not math.isfinite(value):
            raise ValueError(f"reward component {name} is {value}")
    return {name: float(value) for name, value in parts.items()}


class TrajectoryBuilder:
    """Builds a response from the engine's completions and the environment's tokens; spans are offsets in the response."""

    def __init__(self, request: RolloutRequest) -> None:
        self._request = request
        self._tokens: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._spans: list[Span] = []
        self._ending: Ending | None = None

    @property
    def context(self) -> list[int]:
        """Prompt and response so far: what the next `generate` continues."""
        return [*map(int, self._request.prompt.ids), *self._tokens]

    @property
    def room(self) -> int:
        """Tokens that `generate` can still sample."""
        generated = sum(self._mask)
        return min(self._request.max_new_tokens - generated, self.space)

    @property
    def space(self) -> int:
        """Tokens of any kind that still fit."""
        return self._request.max_total_length - len(self._request.prompt.ids) - len(self._tokens)

    def add(self, completion: Completion) -> None:
        """Append what the engine sampled."""
        ids, logprobs = list(completion.token_ids), list(completion.logprobs)
        if len(ids) != len(logprobs):
            raise ValueError(f"a completion of {len(ids)} tokens with {len(logprobs)} log-probabilities")
        if len(ids) > self.space:
            raise ContextFull(f"a completion of {len(ids)} tokens, {self.space} fit")
        start = len(self._tokens)
        self._tokens += ids
        self._logprobs += logprobs
        self._mask += [1] * len(ids)
        self._spans += [Span(s.version, s.start + start, s.end + start) for s in completion.spans]
        self._ending = completion.ending

    def add_environment(self, token_ids: Sequence[int]) -> None:
        """Append tokens that the environment wrote; the loss leaves them out.

        Raises:
            ContextFull: they do not fit; nothing was appended.
        """
        if len(token_ids) > self.space:
            raise ContextFull(f"{len(token_ids)} tokens of the environment, {self.space} fit")
        self._tokens += map(int, token_ids)
        self._logprobs += [0.0] * len(token_ids)
        self._mask += [0] * len(token_ids)

    def finish(self, score: Score, finish: FinishReason | None = None) -> Trajectory:
        """The trajectory. `finish` None: as the last completion ended."""
        if self._ending is None or not any(self._mask):
            raise ValueError("no token was generated")
        if finish is None:
            finish = FinishReason.STOP if self._ending is Ending.STOP else FinishReason.LENGTH
        return Trajectory(
            tokens=np.array(self._tokens, dtype="<u4"),
            mask=np.array(self._mask, dtype="|u1"),
            logprobs=np.array(self._logprobs, dtype="<f4"),
            spans=tuple(self._spans),
            finish=finish,
            rewards=named_rewards(score),
        )
