"""Rank 0 as the dispatcher's shell sees it: its questions, on two links, and what it is owed.

Invariant: `NextQuestion` is answered within `ANSWER_S`, by `KeepWaiting` if there is nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from learner.link.channel import ANSWER_S, Answers, LinkClosed
from learner.link.messages import Answer, Message, NextAnswer, ValidationFigures, Work


@dataclass(frozen=True, slots=True)
class PendingQuestion:
    """A question of rank 0, and where its answer goes."""

    question: Message
    answer: Callable[[Answer], None]


class Rank0:
    """`loop_link`, `save_link`: the dispatcher's ends of the links to rank 0's loop and to its checkpoints."""

    def __init__(self, loop_link: Answers, save_link: Answers, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop_link = loop_link
        self._save_link = save_link
        self._clock = clock
        self._waiting_since: float | None = None
        self._validations: list[ValidationFigures] = []

    def listen(self, put: Callable[[PendingQuestion | LinkClosed], None]) -> None:
        """Hand over every question from now on, and the end of rank 0. Each link has its own thread."""
        for name, link in (("loop-link", self._loop_link), ("save-link", self._save_link)):
            threading.Thread(target=self._listen, args=(link, put), name=name, daemon=True).start()

    def _listen(self, link: Answers, put: Callable[[PendingQuestion | LinkClosed], None]) -> None:
        try:
            while True:
                put(PendingQuestion(link.question(), link.answer))
        except LinkClosed as closed:
            put(closed)

    def asked_next(self) -> None:
        """It has asked what to do next."""
        self._waiting_since = self._clock()

    def reply(self, work: Work) -> None:
        """What it does next."""
        self._waiting_since = None
        validations, self._validations = self._validations, []
        self._loop_link.answer(NextAnswer(work, validations))

    def add_validation(self, figures: ValidationFigures) -> None:
        """To be handed over with the next answer."""
        self._validations.append(figures)

    def overdue(self) -> bool:
        """Whether it must be answered now."""
        return self._waiting_since is not None and self._clock() - self._waiting_since >= ANSWER_S

    def patience(self, longest_s: float) -> float:
        """Seconds until it must be answered, at most `longest_s`."""
        if self._waiting_since is None:
            return longest_s
        return min(longest_s, max(0.0, self._waiting_since + ANSWER_S - self._clock()))
