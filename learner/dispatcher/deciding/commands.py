"""What the dispatcher wants done, and the list in which its deciders collect it. Frozen facts, no behaviour.

The shell carries commands out; the result of one that can be late or fail comes back as an event. Answers to rank 0 are messages
of the link as they are, but for the batch, whose records the shell keeps. The control state is no command: it is whole, so the
shell writes the newest when it has time for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from learner.dispatcher.state.slots import Kind
from learner.link.messages import EndRun, FinishRun, StartRefit
from schemas.records.requests import Request
from schemas.records.seal import Seal

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class SendRequest:
    request: Request
    partition: int


@dataclass(frozen=True, slots=True)
class MakeTopic:
    """Make (or adopt, if empty and unannounced) the topic of a version and start reading it; answered by `TopicReady`."""

    kind: Kind
    version: int


@dataclass(frozen=True, slots=True)
class CloseTopic:
    """Stop reading a version's topic; its records are not needed any more in this incarnation."""

    kind: Kind
    version: int


@dataclass(frozen=True, slots=True)
class WriteSeal:
    seal: Seal


@dataclass(frozen=True, slots=True)
class ReadPast:
    """Report (`CaughtUp`) when all open version topics have been read to their present ends."""

    beat: int


@dataclass(frozen=True, slots=True)
class HandOverBatch:
    """Rank 0: train `version` with the sealed records, in slot order."""

    version: int
    seal: Seal
    seal_offset: int
    catch_up: bool


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """Rewards of the validation of `version`, by slot; `missing` counts prompts without a result."""

    version: int
    rewards: Mapping[int, float]
    lengths: Mapping[int, int]
    missing: int


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log."""

    text: str
    level: Level = "info"


LearnerAnswer = StartRefit | HandOverBatch | FinishRun | EndRun
Command = SendRequest | MakeTopic | CloseTopic | WriteSeal | ReadPast | LearnerAnswer | ValidationDone | Note


class Outbox:
    """Commands of the present event, in the order in which they must be carried out."""

    def __init__(self) -> None:
        self._commands: list[Command] = []

    def add(self, *commands: Command) -> None:
        self._commands += commands

    def note(self, text: str, level: Level = "info") -> None:
        self._commands.append(Note(text, level))

    def take(self) -> list[Command]:
        """All of them; the outbox is empty afterwards."""
        taken, self._commands = self._commands, []
        return taken
