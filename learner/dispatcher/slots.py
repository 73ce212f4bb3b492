"""The table of slots: which of the N places of each open version are unassigned, assigned or filled.

Invariants (`validate`):
- a version has N slots, always; each is in one state of `SlotState`; moves are those of `MOVES` and no others;
- an assigned slot has at least one holder, an unassigned one has none;
- a filled slot has an accepted draw, and its seal entry is the lowest accepted draw;
- a short slot can always be assigned: nothing but a seal closes a version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from learner.dispatcher.events import Filled, Kind
from schemas.errors import ProtocolError
from schemas.identity import Attempt
from schemas.status import FailureKind


class SlotState(Enum):
    UNASSIGNED = "unassigned"
    """Nobody works on it."""
    ASSIGNED = "assigned"
    """One producer works on it, or two when it is hedged."""
    FILLED = "filled"
    """A valid group of one of its draws is in the log."""


MOVES: frozenset[tuple[SlotState, SlotState]] = frozenset(
    {
        (SlotState.UNASSIGNED, SlotState.ASSIGNED),  # a request is issued
        (SlotState.ASSIGNED, SlotState.UNASSIGNED),  # its last holder failed, was lost, or handed it back
        (SlotState.ASSIGNED, SlotState.FILLED),  # a valid group was read
        (SlotState.UNASSIGNED, SlotState.FILLED),  # a valid group of an earlier attempt was read after all
    }
)
STORY = 24  # events that a slot remembers for error messages


@dataclass(slots=True)
class Slot:
    """One place of one version. `draw` and `attempt` are those of the next or the newest request."""

    kind: Kind
    version: int
    index: int
    state: SlotState = SlotState.UNASSIGNED
    draw: int = 0
    attempt: int = 0
    attempts_failed: int = 0
    lost: int = 0
    holders: dict[str, Attempt] = field(default_factory=dict)
    accepted: dict[int, Filled] = field(default_factory=dict)
    given_up: dict[int, str] = field(default_factory=dict)
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY))

    @property
    def abandoned(self) -> bool:
        """A validation prompt that came to nothing: each has one slot and no other draw, so it counts as missing."""
        return self.kind == "validation" and bool(self.given_up) and self.state is SlotState.UNASSIGNED

    @property
    def next_key(self) -> Attempt:
        return Attempt(self.version, self.index, self.draw, self.attempt)

    @property
    def filled(self) -> Filled:
        return self.accepted[min(self.accepted)]

    def move(self, to: SlotState, event: str) -> None:
        if self.state is not to:
            if (self.state, to) not in MOVES:
                raise ProtocolError(
                    f"slot {self.next_key}: {self.state.value} -> {to.value} on {event}; story: {list(self.story)}"
                )
            self.state = to
        self.story.append(event)

    def validate(self) -> None:
        story = list(self.story)
        assert (self.state is SlotState.ASSIGNED) == (bool(self.holders) and not self.accepted), (self.next_key, story)
        assert (self.state is SlotState.FILLED) == bool(self.accepted), (self.next_key, story)
        for key in self.holders.values():
            assert (key.version, key.slot) == (self.version, self.index), (key, story)


@dataclass(slots=True)
class VersionSlots:
    """All slots of one version of one kind."""

    kind: Kind
    version: int
    slots: list[Slot]

    @classmethod
    def of(cls, kind: Kind, version: int, count: int) -> VersionSlots:
        return cls(kind, version, [Slot(kind, version, index) for index in range(count)])

    @property
    def complete(self) -> bool:
        return all(slot.state is SlotState.FILLED for slot in self.slots)

    @property
    def all_assigned(self) -> bool:
        return all(slot.state is not SlotState.UNASSIGNED for slot in self.slots)

    def missing(self) -> Iterator[Slot]:
        return (slot for slot in self.slots if slot.state is not SlotState.FILLED)

    def unassigned(self) -> Iterator[Slot]:
        """Slots that nobody works on and somebody should."""
        return (slot for slot in self.slots if slot.state is SlotState.UNASSIGNED and not slot.abandoned)

    @property
    def settled(self) -> bool:
        """Whether no slot can change any more for the better."""
        return all(slot.state is SlotState.FILLED or slot.abandoned for slot in self.slots)

    def held_by(self, producer: str) -> Iterator[tuple[Slot, Attempt]]:
        return ((slot, slot.holders[producer]) for slot in self.slots if producer in slot.holders)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the config section `dispatch`."""

    max_attempts: int
    max_draws: int
    max_lost: int


class SlotTable:
    """Open versions and their slots. The only owner of this state; everybody else asks."""

    def __init__(self, prompts_per_step: int, limits: Limits) -> None:
        self.prompts_per_step = prompts_per_step
        self.limits = limits
        self.open_versions: dict[tuple[Kind, int], VersionSlots] = {}

    # --- versions -----------------------------------------------------------------------------------------------------------

    def open(self, kind: Kind, version: int, count: int | None = None) -> VersionSlots:
        if (kind, version) in self.open_versions:
            raise ProtocolError(f"{kind} version {version} is open already")
        slots = VersionSlots.of(kind, version, self.prompts_per_step if count is None else count)
        self.open_versions[kind, version] = slots
        return slots

    def close(self, kind: Kind, version: int) -> VersionSlots:
        return self.open_versions.pop((kind, version))

    def get(self, kind: Kind, version: int) -> VersionSlots | None:
        return self.open_versions.get((kind, version))

    def versions(self, kind: Kind) -> list[VersionSlots]:
        """Open versions of a kind, lowest first."""
        return [slots for (k, _), slots in sorted(self.open_versions.items(), key=lambda item: item[0][1]) if k == kind]

    def slot(self, kind: Kind, key: Attempt) -> Slot | None:
        slots = self.get(kind, key.version)
        return slots.slots[key.slot] if slots and 0 <= key.slot < len(slots.slots) else None

    # --- moves --------------------------------------------------------------------------------------------------------------

    def assign(self, slot: Slot, producer: str) -> Attempt:
        """Issue the slot's next attempt to `producer`."""
        if slot.state is SlotState.FILLED or producer in slot.holders:
            raise ProtocolError(f"slot {slot.next_key} is {slot.state.value}, held by {sorted(slot.holders)}: not for {producer}")
        key = slot.next_key
        slot.attempt += 1
        slot.holders[producer] = key
        slot.move(SlotState.ASSIGNED, f"{key} assigned to {producer}")
        return key

    def adopt(self, kind: Kind, key: Attempt, producer: str) -> bool:
        """Take over a request that a producer holds from an earlier incarnation. False if the slot does not want it."""
        slot = self.slot(kind, key)
        if slot is None or slot.state is SlotState.FILLED or key.draw < slot.draw or producer in slot.holders:
            return False
        slot.draw = key.draw
        slot.attempt = max(slot.attempt, key.attempt + 1)
        slot.holders[producer] = key
        slot.move(SlotState.ASSIGNED, f"{key} adopted from {producer}")
        return True

    def accept(self, kind: Kind, filled: Filled) -> dict[str, Attempt] | None:
        """Record a valid group. Returns who held the slot until now, or None for a duplicate or late group."""
        slot = self.slot(kind, filled.key)
        if slot is None or filled.key.draw in slot.accepted:
            return None
        slot.accepted[filled.key.draw] = filled
        holders = dict(slot.holders)
        slot.holders.clear()
        slot.move(SlotState.FILLED, f"{filled.key} filled at {filled.partition}:{filled.offset}")
        return holders

    def fail(self, kind: Kind, key: Attempt, producer: str, failure: FailureKind, reason: str) -> Slot | None:
        """A producer gives a request back. Returns the slot if this freed it or opened its next draw, else None."""
        slot = self.slot(kind, key)
        if slot is None or slot.holders.get(producer) != key:
            return None
        del slot.holders[producer]
        if slot.state is SlotState.FILLED:
            return None
        if failure is FailureKind.PROMPT:
            self._give_up(slot, f"prompt: {reason}")
        elif failure is FailureKind.ROLLOUT:
            slot.attempts_failed += 1
            if slot.attempts_failed >= self.limits.max_attempts:
                self._give_up(slot, f"{slot.attempts_failed} attempts failed: {reason}")
        if not slot.holders:
            slot.move(SlotState.UNASSIGNED, f"{key} {failure.value} at {producer}: {reason}")
        return slot

    def lose(self, producer: str) -> list[Slot]:
        """A producer is gone: all that it held is free again; a draw that was lost too often is given up."""
        freed = []
        for slots in self.open_versions.values():
            for slot in slots.slots:
                key = slot.holders.pop(producer, None)
                if key is None or slot.state is SlotState.FILLED:
                    continue
                slot.lost += 1
                if slot.lost >= self.limits.max_lost:
                    self._give_up(slot, f"lost {slot.lost} times with its producer")
                if not slot.holders:
                    slot.move(SlotState.UNASSIGNED, f"{key} lost with {producer}")
                    freed.append(slot)
        return freed

    def _give_up(self, slot: Slot, reason: str) -> None:
        slot.given_up[slot.draw] = reason
        slot.story.append(f"draw {slot.draw} given up: {reason}")
        slot.draw += 1
        slot.attempt = slot.attempts_failed = slot.lost = 0

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        for (kind, version), slots in self.open_versions.items():
            assert (slots.kind, slots.version) == (kind, version)
            if kind == "rollout":
                assert len(slots.slots) == self.prompts_per_step, (version, len(slots.slots))
            for index, slot in enumerate(slots.slots):
                assert slot.index == index
                slot.validate()
