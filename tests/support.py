"""Helpers of all tests."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from broker_config.deadline import Deadline

T = TypeVar("T")

TURN_S = 0.02


def new_id() -> str:
    """A run id that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"


def eventually(condition: Callable[[], T | None], deadline: Deadline | float, what: str = "the condition") -> T:
    """Ask until the answer is truthy, and return it. An `AssertionError` inside `condition` counts as not yet.

    Raises:
        AssertionError: not within `deadline` (a `Deadline`, or seconds); shows the last answer.
    """
    limit = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
    while (answer := _asked(condition, limit, what)) is None:
        time.sleep(min(TURN_S, limit.remaining()))
    return answer


async def eventually_in_loop(condition: Callable[[], T | None], deadline: Deadline | float, what: str = "the condition") -> T:
    """`eventually` for a condition that the running event loop brings about: the loop turns between two questions."""
    limit = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
    while (answer := _asked(condition, limit, what)) is None:  # noqa: ASYNC110 - what is asked about sets no event
        await asyncio.sleep(min(TURN_S / 20, limit.remaining()))
    return answer


def _asked(condition: Callable[[], T | None], limit: Deadline, what: str) -> T | None:
    """A truthy answer, or None for not yet."""
    last: object
    try:
        answer = condition()
    except AssertionError as error:
        last = error
    else:
        if answer:
            return answer
        last = answer
    if limit.expired:
        raise AssertionError(f"{what} did not hold within {limit.seconds:g} s; last answer: {last!r}")
    return None
