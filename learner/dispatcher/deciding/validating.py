"""Validation: when a version is validated, with how many prompts, and when its result is complete.

Invariant: while a version is being validated no round starts, so its producers keep its weights; a deadline bounds that.
"""

from __future__ import annotations

from learner.dispatcher.deciding.commands import CloseTopic, Outbox, ValidationDone
from learner.dispatcher.deciding.issuing import Issuing
from learner.dispatcher.state.run_state import RunState
from learner.dispatcher.state.slots import SlotState, VersionSlots


class Validating:
    def __init__(self, state: RunState, issuing: Issuing, out: Outbox) -> None:
        self.state = state
        self._issuing = issuing
        self._out = out

    def wanted(self, version: int) -> int:
        """Prompts to validate `version` with: 0 if it is not its turn, has been done, or there is nothing to validate with."""
        s = self.state
        rows = s.dataset.validation_rows if s.dataset else None
        if not rows or version in s.validation.done or not s.plan.validates(version, s.last_version):
            return 0
        return min(rows, s.plan.grpo.max_val_samples or rows)

    def on_announced(self, version: int) -> None:
        """`version` has been announced: it is validated, if it is to be."""
        count = self.wanted(version)
        if count:
            running = self.state.validation
            running.version, running.count, running.opened_beat = version, count, None

    def advance(self) -> None:
        """Make the topic, give the prompts out, and end the validation when all came or the time is over."""
        s, version = self.state, self.state.validation.version
        if version is None:
            return
        self._issuing.make_topic("validation", version)
        if ("validation", version) in s.topics.ids and s.slots.get("validation", version) is None:
            s.slots.open("validation", version, s.validation.count)
        self._issuing.assign_version("validation", version)
        slots = s.slots.get("validation", version)
        done = self._judge(version, slots) if slots is not None else None
        if done is None:
            return
        self._issuing.cancel_all(s.slots.close("validation", version).slots)
        self._out.add(done, CloseTopic("validation", version))
        s.topics.ids.pop(("validation", version), None)

    def _judge(self, version: int, slots: VersionSlots) -> ValidationDone | None:
        """The result, once all groups that can come are there or the time is over; None before."""
        s, running = self.state, self.state.validation
        if running.opened_beat is None:
            running.opened_beat = s.clock.beat
        late = s.clock.beat - running.opened_beat > s.plan.beats(s.plan.grpo.val_timeout_s)
        if not slots.settled and not late:
            return None
        filled = {slot.index: slot.filled for slot in slots.slots if slot.state is SlotState.FILLED}
        running.done.add(version)
        running.version = None
        return ValidationDone(
            version=version,
            rewards={index: f.reward for index, f in filled.items()},
            lengths={index: f.tokens for index, f in filled.items()},
            missing=len(slots.slots) - len(filled),
        )
