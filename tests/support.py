"""Helpers of all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from broker_config.deadline import Deadline

T = TypeVar("T")


def eventually(condition: Callable[[], T | None], deadline: Deadline | float, what: str = "the condition") -> T:
    """Ask until the answer is truthy, and return it. An `AssertionError` inside `condition` counts as not yet.

    Raises:
        AssertionError: not within `deadline` (a `Deadline`, or seconds); shows the last answer.
    """
    limit = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
    while True:
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
        time.sleep(min(0.02, limit.remaining()))
