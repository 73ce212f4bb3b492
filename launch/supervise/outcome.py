"""How a run, or one of its processes, ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass

FINISHED, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130
BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended. `blame` names the process whose log tells more."""

    code: int
    cause: str
    blame: str | None = None

    @property
    def finished(self) -> bool:
        return self.code == FINISHED


def describe_code(code: int) -> str:
    """An exit code in words; 128 + n is the end by signal n."""
    if code > 128:
        try:
            return f"signal {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exit code {code}"
