"""Patience with a broker that is away: a question is asked again until it is answered or its deadline has passed.

Every retry of a question to the broker goes through `ask_patiently`. Two failures are followed by another try: `BrokerAway`, and
`NotYet`, which a question raises itself. Any other one ends the question at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from broker_config.deadline import Deadline
from schemas.errors import BrokerAway

T = TypeVar("T")

AWAY_PAUSE_S = 0.5


class NotYet(Exception):
    """The answer is not there yet. `what` names what is waited for; it is asked for again after `pause_s`."""

    def __init__(self, what: str, pause_s: float) -> None:
        self.what = what
        self.pause_s = pause_s
        super().__init__(what)


def ask_patiently(ask: Callable[[], T], deadline: Deadline) -> T:
    """The answer of `ask`, which is called at least once, and again until the deadline while the broker is away.

    Raises:
        BrokerAway: the broker was still away at the deadline.
        DeadlineExceeded: the last answer was `NotYet`; the message says what was waited for.
    """
    retrying = Retrying(
        retry=retry_if_exception_type((BrokerAway, NotYet)),
        stop=lambda _: deadline.expired,
        wait=_pause_s,
        sleep=deadline.pause,
        reraise=True,
    )
    try:
        return retrying(ask)
    except NotYet as not_yet:
        raise deadline.exceeded(not_yet.what) from not_yet.__cause__


def _pause_s(state: RetryCallState) -> float:
    failure = state.outcome.exception() if state.outcome is not None else None
    return failure.pause_s if isinstance(failure, NotYet) else AWAY_PAUSE_S
