"""The validation that is due or running: at most one version at a time, made with exactly that version's weights.

Invariant: while a version is being validated no round starts, so its producers keep its weights; a deadline bounds that.
"""

from __future__ import annotations

from learner.dispatcher.deciding.events import ValidationDone
from learner.dispatcher.deciding.plan import Plan
from learner.dispatcher.deciding.slots import SlotState, VersionSlots
from schemas.records.control import DatasetFacts


class Validation:
    """`version` is the one that is validated now, None when none is."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.version: int | None = None
        self.count = 0
        self.opened_beat: int | None = None
        self.done: set[int] = set()

    def wanted(self, version: int, last: int | None, dataset: DatasetFacts | None) -> int:
        """Prompts to validate `version` with: 0 if it is not its turn, has been done, or there is nothing to validate with."""
        rows = dataset.validation_rows if dataset else None
        if not rows or version in self.done or not self.plan.validates(version, last):
            return 0
        return min(rows, self.plan.grpo.max_val_samples or rows)

    def due(self, version: int, last: int | None, dataset: DatasetFacts | None) -> None:
        """`version` has been announced: validate it, if it is to be."""
        count = self.wanted(version, last, dataset)
        if count:
            self.version, self.count, self.opened_beat = version, count, None

    def judge(self, slots: VersionSlots | None, beat: int) -> ValidationDone | None:
        """The result, once all groups that can come are there or the time is over; None before."""
        if self.version is None or slots is None:
            return None
        if self.opened_beat is None:
            self.opened_beat = beat
        late = beat - self.opened_beat > self.plan.beats(self.plan.grpo.val_timeout_s)
        if not slots.settled and not late:
            return None
        filled = {slot.index: slot.filled for slot in slots.slots if slot.state is SlotState.FILLED}
        result = ValidationDone(
            version=self.version,
            rewards={index: f.reward for index, f in filled.items()},
            lengths={index: f.tokens for index, f in filled.items()},
            missing=len(slots.slots) - len(filled),
        )
        self.done.add(self.version)
        self.version = None
        return result
