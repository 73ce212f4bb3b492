"""Every error that Weir raises on purpose.

    WeirError
    |-- ConfigError        wrong input; shown whole before anything starts (exit code 2)
    |-- RecordRefused      a record that is not what it must be; quarantined, its slot is issued again
    |-- ProtocolError      an illegal move of a state machine: our own mistake; the process stops
    |-- FileError          a file cannot be written or read; the run ends and can be resumed
    |-- BrokerError        Kafka said no, or what it holds is not what was asked for; the process stops
    |   |-- BrokerAway     ... or it is away; whoever asked asks again
    |   |-- OffsetGone     ... or the records are deleted; the reader joins anew
    |   `-- LostData       ... or what resuming needs is lost; nothing is changed
    |-- DeadlineExceeded   a wait ended without what it waited for; the owner of the wait decides
    |-- TransferError      a weight transfer failed; the round continues without its member
    `-- RunStopped         the run ended with a named cause; processes leave in order

A message says what happened, the values, and what to do; for a record it names topic, partition, offset and key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class WeirError(Exception):
    """Base of all expected failures. Command lines print it without a traceback."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the input: the key or file, what was found, why it cannot be used, and the fix."""

    key: str
    value: Any
    why: str
    fix: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f"={self.value!r}"
        return f"{self.key}{shown}: {self.why}; {self.fix}"


class ConfigError(WeirError):
    """Wrong input. Holds every `Problem` that was found, so that a person can fix all of them at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class RecordRefused(WeirError):
    """A record's bytes or contents are not valid. `reason` is a short fixed word for counting, `detail` is for a person.

    `detail` is cut at `DETAIL` characters: it may quote the record, and goes to the log and to quarantine.
    """

    DETAIL = 1000

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail if len(detail) <= self.DETAIL else detail[: self.DETAIL - 3] + "..."
        super().__init__(f"{reason}: {self.detail}")


class ProtocolError(WeirError):
    """A state machine was asked for a move that its table does not have."""


class FileError(WeirError):
    """A file cannot be written or read: a full disk, a quota, rights."""


class BrokerError(WeirError):
    """The broker refused, or what it applied is not what was asked for."""


class BrokerAway(BrokerError):
    """The broker is away, or has only just come back: the same question succeeds later."""


class OffsetGone(BrokerError):
    """The next record to read is not in its log any more: it was retired, or the log is another one."""


class LostData(BrokerError):
    """A run cannot be resumed as it was: its broker no longer has what must be trained again. Nothing was changed."""


class DeadlineExceeded(WeirError):
    """A wait ended by its deadline. The message says what it waited for, how long, and what can end the wait."""


class TransferError(WeirError):
    """A weight transfer failed for this member of the round."""


class RunStopped(WeirError):
    """The run has ended. `resumable`: whether `--resume` can continue it."""

    def __init__(self, reason: str, *, resumable: bool = True) -> None:
        self.reason = reason
        self.resumable = resumable
        super().__init__(reason)
