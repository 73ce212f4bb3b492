"""Catching up compared with the first time: does a step that is trained again come out as it was recorded?"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CatchUp:
    """Steps that are trained again after a resume, against what was recorded when they were trained first."""

    steps: int = 0
    differing: list[int] = field(default_factory=list)
    unrecorded: int = 0

    def compare(self, version: int, state: str, recorded: str | None) -> None:
        """One step: its state digest now, and the recorded one (None: no record of it)."""
        self.steps += 1
        if recorded is None:
            self.unrecorded += 1
        # A warning, not an error: on other hardware the last bits differ, and the run is as good as before.
        elif recorded != state:
            self.differing.append(version)
            log.warning("step=%d trained again to state %s, recorded was %s", version, state[:16], recorded[:16])

    def take_metrics(self) -> dict[str, float]:
        """Figures for the first new step after them, once; empty if there were none."""
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
        # Once: these metrics belong to the first new step, and would be summed up wrong if every later one had them.
        self.steps, self.differing, self.unrecorded = 0, [], 0
        return found
