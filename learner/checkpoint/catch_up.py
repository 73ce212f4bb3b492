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
        self.steps += 1
        if recorded is None:
            self.unrecorded += 1
        elif recorded != state:
            self.differing.append(version)
            log.warning("step=%d trained again to state %s, recorded was %s", version, state[:16], recorded[:16])

    def outcome(self) -> dict[str, float]:
        """Figures for the first new step after them, once; empty if there were none."""
        if self.steps == 0:
            return {}
        told = f"the first that differs: {self.differing[0]}" if self.differing else "none differs"
        log.info(
            "caught up: %d steps trained again, %d differ from what was recorded (%s)", self.steps, len(self.differing), told
        )
        found = {
            "resume/steps": float(self.steps),
            "resume/differing": float(len(self.differing)),
            "resume/unrecorded": float(self.unrecorded),
        }
        self.steps, self.differing, self.unrecorded = 0, [], 0
        return found
