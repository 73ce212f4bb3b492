"""Catching up, compared with the first time: does a step that is trained again come out as it was recorded?"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CatchUp:
    """Steps that are trained again after a resume, compared with what was recorded when they were first trained."""

    steps: int = 0
    differing: list[int] = field(default_factory=list)
    unrecorded: int = 0

    def compare(self, version: int, state: str, recorded: str | None) -> None:
        """Count one step. `state`: its state digest now; `recorded`: the recorded one, None if there is none."""
        self.steps += 1
        if recorded is None:
            self.unrecorded += 1
        # A warning, not an error: on other hardware the last bits differ, and the run is as good as before.
        elif recorded != state:
            self.differing.append(version)
            log.warning("step=%d trained again to state %s, recorded was %s", version, state[:16], recorded[:16])

    def take_metrics(self) -> dict[str, float]:
        """Log the counts and return them as metrics of the first new step, once; empty if no step was trained again."""
        if self.steps == 0:
            return {}
        first = f"the first that differs: {self.differing[0]}" if self.differing else "none differs"
        log.info(
            "caught up: %d steps trained again, %d differ from what was recorded (%s)", self.steps, len(self.differing), first
        )
        found = {
            "resume/steps": float(self.steps),
            "resume/differing": float(len(self.differing)),
            "resume/unrecorded": float(self.unrecorded),
        }
        # Once: these metrics belong to the first new step, and sums would be wrong if every later one had them.
        self.steps, self.differing, self.unrecorded = 0, [], 0
        return found
