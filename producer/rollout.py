"""From a prompt to a whole group: all trajectories at once, each tried again when it fails, all or nothing.

| | |
|-|-|
| consumes | a prompt, an environment, an engine |
| produces | the group's finished trajectories in order, or the reason why there is none |
| waits for | tokens of the engine, answers of the environment |
| deadline | `timeout_s` without either; a trajectory that makes progress is never cut off |
| unblocked by | that deadline, `max_retries`, cancellation |

A failed trajectory is never published and never a reward of zero. The group fails with `RolloutFailed` (worth another attempt) or
`PromptFailed` (the prompt is at fault, another attempt would fail too).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from producer.engine.protocol import Engine, EngineDead, Sampling
from producer.environments.base import Environment, Prompt, PromptRefused, RolloutRequest, Tokenizer, named_rewards
from producer.episode import EngineRefused, Episode
from schemas.records.group import Kind, Trajectory

_log = logging.getLogger(__name__)
_CANCEL_GRACE_S = 5.0  # how long an environment may clean up when its episode is cancelled
_abandoned: set[asyncio.Task[Any]] = set()  # episodes that ignored their cancellation; kept until they end


class PromptFailed(Exception):
    """No attempt with this prompt can succeed."""


class RolloutFailed(Exception):
    """A trajectory failed, and so did every retry."""


class NoProgress(Exception):
    """Neither the engine nor the environment made progress for `timeout_s`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """max_total_length: prompt and response, in tokens; max_retries: of one trajectory; timeout_s: without progress."""

    max_total_length: int
    max_retries: int
    timeout_s: float

    @property
    def poll_s(self) -> float:
        """Seconds between two looks at the progress: a tenth of the timeout, at most 5."""
        return min(5.0, self.timeout_s / 10)


def never_frozen() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _GroupContext:
    """What all trajectories of a group share."""

    environment: Environment
    engine: Engine
    sampling: Sampling
    limits: Limits
    priority: int
    frozen: Callable[[], bool]


async def roll_out(
    *,
    key: str,
    kind: Kind,
    prompt: Prompt,
    count: int,
    environment: Environment,
    engine: Engine,
    sampling: Sampling,
    tokenizer: Tokenizer,
    limits: Limits,
    priority: int = 0,
    frozen: Callable[[], bool] = never_frozen,
) -> tuple[Trajectory, ...]:
    """The `count` finished trajectories of a group, in order. Cancelling it aborts all of its requests in the engine.

    Args:
        key: of the record that the group will be; the engine's request ids start with it, so it must be unique at a time.
        sampling: of the request; `max_new_tokens` bounds the generated tokens of a trajectory, over all its turns.
        frozen: whether the engine is paused now; a trajectory that waits for it then loses no time.

    Raises:
        PromptFailed, RolloutFailed: there is no group; EngineDead: as the engine raised it.
    """
    length = len(prompt.ids)
    if not 0 < length < limits.max_total_length:
        raise PromptFailed(f"row {prompt.row}: a prompt of {length} tokens, allowed 1 to {limits.max_total_length - 1}")
    group = _GroupContext(environment, engine, sampling, limits, priority, frozen)
    tasks: list[asyncio.Task[Trajectory]] = []
    for index in range(count):
        request = RolloutRequest(prompt, kind, index, sampling.max_new_tokens, limits.max_total_length, tokenizer)
        tasks.append(asyncio.create_task(_persistent(f"{key}/t{index}", request, group)))
    # Not a TaskGroup: before Python 3.13 it leaves its caller marked as cancelled when a child fails.
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if errors:
        raise _gravest(errors)
    return tuple(task.result() for task in tasks)


def _gravest(errors: Sequence[BaseException]) -> BaseException:
    for kind in (EngineDead, PromptFailed, RolloutFailed):
        for error in errors:
            if isinstance(error, kind):
                return error
    return errors[0]


async def _persistent(key: str, request: RolloutRequest, group: _GroupContext) -> Trajectory:
    """One trajectory, tried up to `max_retries` + 1 times."""
    reason = ""
    clock = asyncio.get_running_loop().time
    for retry in range(group.limits.max_retries + 1):
        episode = Episode(f"{key}/r{retry}", request, group.engine, group.sampling, group.priority, clock)
        try:
            trajectory = await _watched(episode, request, group)
            _check(trajectory, request)
            return trajectory
        except EngineDead:
            raise
        except PromptRefused as refused:
            raise PromptFailed(f"row {request.prompt.row}: {refused}") from refused
        except EngineRefused as refused:
            if refused.turn == 0:
                raise PromptFailed(f"row {request.prompt.row}: the engine refuses it: {refused}") from refused
            reason = f"the engine refuses turn {refused.turn}: {refused}"
            _log.warning("%s try %d failed: %s", key, retry, reason)
        except Exception as error:  # noqa: BLE001
            # An environment is somebody's program: whatever it raises is a failed try, with its traceback in the log.
            reason = f"{type(error).__name__}: {error}"
            _log.warning("%s try %d failed: %s", key, retry, reason, exc_info=error)
    raise RolloutFailed(f"trajectory {request.index}, tried {group.limits.max_retries + 1} times, last: {reason}")


async def _watched(episode: Episode, request: RolloutRequest, group: _GroupContext) -> Trajectory:
    """Run the episode for as long as it makes progress.

    Raises:
        NoProgress: it made none for `timeout_s`; else what the episode raised.
    """
    limits = group.limits
    task = asyncio.ensure_future(group.environment.rollout(request, episode.generate))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=limits.poll_s)
            if not task.done() and episode.idle_s(group.engine.progress(), group.frozen()) > limits.timeout_s:
                raise NoProgress(f"no progress for {limits.timeout_s} s, {episode.whereabouts()}")
    finally:
        await _ended(task)
    if task.cancelled():
        raise RuntimeError("the episode was cancelled from inside")
    return task.result()


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancel the task if it runs, and wait until it has ended or the grace is over."""
    if not task.done():
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=_CANCEL_GRACE_S)
        finally:
            if not task.done():
                _log.error("an episode did not end within %s s of its cancellation; it is left alone", _CANCEL_GRACE_S)
                _abandoned.add(task)
                task.add_done_callback(_forget)
        if task.done() and not task.cancelled():
            task.exception()  # of no interest after a cancellation, but asyncio complains when nobody looks


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()


def _check(t: Trajectory, request: RolloutRequest) -> None:
    """What an environment that builds trajectories by hand may get wrong. The rest is checked where the group is accepted.

    Raises:
        TypeError, ValueError: a failed try.
    """
    if not isinstance(t, Trajectory):
        raise TypeError(f"rollout returned a {type(t).__name__}, not a Trajectory")
    length = len(t.tokens)
    if t.mask.shape != (length,) or t.logprobs.shape != (length,):
        raise ValueError(f"{length} tokens, mask {t.mask.shape}, logprobs {t.logprobs.shape}")
    total = len(request.prompt.ids) + length
    if total > request.max_total_length:
        raise ValueError(f"prompt and response have {total} tokens, at most {request.max_total_length}")
    if not t.mask.any():
        raise ValueError("no token was generated")
    if not np.isfinite(t.logprobs[t.mask == 1]).all():
        raise ValueError("a log-probability is not finite")
    named_rewards(t.rewards)
