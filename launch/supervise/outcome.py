"""How a run ended, and which process's log explains it."""

from __future__ import annotations

from dataclasses import dataclass

from launch.exit_codes import FINISHED

BROKER = "broker"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """`code`: the exit code of the run; `blame`: the process, or `BROKER`, whose log explains the cause."""

    code: int
    cause: str
    blame: str | None = None

    @property
    def finished(self) -> bool:
        return self.code == FINISHED
