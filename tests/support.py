"""Helpers of all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from broker_config.deadline import Deadline

T = TypeVar("T")


def eventually(condition: Callable[[], T], deadline: Deadline | float, what: str = "the condition") -> T:
    """Ask until the answer is truthy, and return it. An `AssertionError` inside `condition` counts as not yet.

    Raises:
        AssertionError: not within `deadline` (a `Deadline`, or seconds); shows the last answer.
    """
    limit = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
    while True:
        try:
            answer: object = condition()
        except AssertionError as error:
            answer = error
        else:
            if answer:
                return answer  # type: ignore[return-value]
        if limit.expired:
            raise AssertionError(f"{what} did not hold within {limit.seconds:g} s; last answer: {answer!r}")
        time.sleep(min(0.02, limit.remaining()))
