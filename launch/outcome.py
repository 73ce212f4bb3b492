"""How a run ended, and which process's log explains it."""

from __future__ import annotations

from dataclasses import dataclass

from launch.exit_codes import FINISHED

BROKER = "broker"
LEARNER = "learner-0"
"""All ranks of the learner: the name of its process and of its log."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """`code`: the exit code of the run; `blame`: the process, or `BROKER`, whose log explains the cause."""

    code: int
    cause: str
    blame: str | None = None

    @property
    def finished(self) -> bool:
        return self.code == FINISHED
