"""The table of slots: which of the N places of each open version are unassigned, assigned or filled.

Invariants (`validate`):
- a version has N slots, always; each is in one state of `SlotState`; moves are those of `MOVES` and no others;
- an assigned slot has at least one holder, an unassigned one has none;
- a filled slot has an accepted draw, and its seal entry is the lowest accepted draw;
- a short slot can always be assigned: nothing but a seal closes a version.

No question that is asked after every event costs more for more slots: each version counts its states, and knows the slots that
are free and those that each producer has.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from schemas.errors import ProtocolError
from schemas.identity import Attempt
from schemas.records.status import FailureKind

Kind = Literal["rollout", "validation"]


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
HISTORY = 24  # events that a slot remembers for error messages


@dataclass(frozen=True, slots=True)
class Filled:
    """Where the accepted group of a draw lies, and what the scheduler wants to know of it."""

    key: Attempt
    partition: int
    offset: int
    sha256: str
    content_sha256: str
    reward: float
    tokens: int


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
    filtered: dict[int, Filled] = field(default_factory=dict)
    """Valid groups that a filter refused, by draw: read, counted, and trained only if `max_draws` of them came."""
    given_up: dict[int, str] = field(default_factory=dict)
    history: deque[str] = field(default_factory=lambda: deque(maxlen=HISTORY))

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

    def decided(self, draw: int) -> bool:
        """Whether the first valid record of a draw has been read."""
        return draw in self.accepted or draw in self.filtered

    def validate(self) -> None:
        history = list(self.history)
        assert (self.state is SlotState.ASSIGNED) == (bool(self.holders) and not self.accepted), (self.next_key, history)
        assert (self.state is SlotState.FILLED) == bool(self.accepted), (self.next_key, history)
        for key in self.holders.values():
            assert (key.version, key.slot) == (self.version, self.index), (key, history)


class VersionSlots:
    """All slots of one version of one kind."""

    def __init__(self, kind: Kind, version: int, count: int) -> None:
        self.kind = kind
        self.version = version
        self.slots = [Slot(kind, version, index) for index in range(count)]
        self.counts = {SlotState.UNASSIGNED: count, SlotState.ASSIGNED: 0, SlotState.FILLED: 0}
        self.abandoned = 0
        self._free = list(range(count))  # a heap of indexes; those that are not free any more are dropped when they come up
        self._held: dict[str, set[int]] = {}

    @property
    def complete(self) -> bool:
        return self.counts[SlotState.FILLED] == len(self.slots)

    @property
    def all_assigned(self) -> bool:
        return self.counts[SlotState.UNASSIGNED] == 0

    @property
    def settled(self) -> bool:
        """Whether no slot can change any more for the better."""
        return self.counts[SlotState.FILLED] + self.abandoned == len(self.slots)

    def missing(self) -> Iterator[Slot]:
        return (slot for slot in self.slots if slot.state is not SlotState.FILLED)

    def next_free(self) -> Slot | None:
        """The lowest slot that nobody works on and somebody should."""
        while self._free:
            slot = self.slots[self._free[0]]
            if slot.state is SlotState.UNASSIGNED and not slot.abandoned:
                return slot
            heapq.heappop(self._free)
        return None

    def held_by(self, producer: str) -> list[tuple[Slot, Attempt]]:
        return [(self.slots[index], self.slots[index].holders[producer]) for index in sorted(self._held.get(producer, ()))]

    # --- moves, for the table -----------------------------------------------------------------------------------------------

    def hold(self, slot: Slot, producer: str, key: Attempt) -> None:
        slot.holders[producer] = key
        self._held.setdefault(producer, set()).add(slot.index)

    def let_go(self, slot: Slot, producer: str) -> Attempt | None:
        key = slot.holders.pop(producer, None)
        if key is not None:
            held = self._held[producer]
            held.discard(slot.index)
            if not held:
                del self._held[producer]
        return key

    def move(self, slot: Slot, to: SlotState, event: str) -> None:
        if slot.state is not to:
            if (slot.state, to) not in MOVES:
                raise ProtocolError(
                    f"slot {slot.next_key}: {slot.state.value} -> {to.value} on {event}; history: {list(slot.history)}"
                )
            self.abandoned -= slot.abandoned
            self.counts[slot.state] -= 1
            self.counts[to] += 1
            slot.state = to
            self.abandoned += slot.abandoned
            if to is SlotState.UNASSIGNED:
                heapq.heappush(self._free, slot.index)
        slot.history.append(event)

    def give_up(self, slot: Slot, reason: str) -> None:
        """The slot's present draw is given up; the next one opens."""
        self.abandoned -= slot.abandoned
        slot.given_up[slot.draw] = reason
        slot.history.append(f"draw {slot.draw} given up: {reason}")
        slot.draw += 1
        slot.attempt = slot.attempts_failed = slot.lost = 0
        self.abandoned += slot.abandoned

    def validate(self) -> None:
        for index, slot in enumerate(self.slots):
            assert slot.index == index
            slot.validate()
        for state, count in self.counts.items():
            assert count == sum(slot.state is state for slot in self.slots), (self.version, state, count)
        assert self.abandoned == sum(slot.abandoned for slot in self.slots)
        free = {slot.index for slot in self.slots if slot.state is SlotState.UNASSIGNED and not slot.abandoned}
        assert free <= set(self._free), (self.version, free - set(self._free))
        held = {(name, index) for name, indexes in self._held.items() for index in indexes}
        assert held == {(name, slot.index) for slot in self.slots for name in slot.holders}, self.version


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the config section `dispatch`."""

    max_attempts: int
    max_draws: int
    max_lost: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a valid group did: who held the slot's draw until now, and whether the group only opened the next draw."""

    holders: dict[str, Attempt]
    filtered: bool


@dataclass(slots=True)
class Lost:
    """What went with a producer: requests that nobody works on now, and why draws were given up."""

    requests: int = 0
    given_up: list[str] = field(default_factory=list)


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
        slots = VersionSlots(kind, version, self.prompts_per_step if count is None else count)
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
        slots, key = self._of(slot), slot.next_key
        slot.attempt += 1
        slots.hold(slot, producer, key)
        slots.move(slot, SlotState.ASSIGNED, f"{key} assigned to {producer}")
        return key

    def adopt(self, kind: Kind, key: Attempt, producer: str) -> bool:
        """Take over a request that a producer holds from an earlier incarnation. False if the slot does not want it."""
        slot = self.slot(kind, key)
        if slot is None or slot.state is SlotState.FILLED or key.draw < slot.draw or producer in slot.holders:
            return False
        slots = self._of(slot)
        slot.draw = key.draw
        slot.attempt = max(slot.attempt, key.attempt + 1)
        slots.hold(slot, producer, key)
        slots.move(slot, SlotState.ASSIGNED, f"{key} adopted from {producer}")
        return True

    def accept(self, kind: Kind, filled: Filled, *, passes: bool = True) -> Accepted | None:
        """Record a valid group. None for a duplicate or late one.

        One that does not pass the filter opens the slot's next draw, until `max_draws` came; then the lowest of them is taken.
        """
        slot = self.slot(kind, filled.key)
        if slot is None or slot.decided(filled.key.draw):
            return None
        slots = self._of(slot)
        if not passes:
            slot.filtered[filled.key.draw] = filled
            if slot.state is SlotState.FILLED:
                return Accepted({}, filtered=True)
            if len(slot.filtered) < self.limits.max_draws:
                holders = {name: key for name, key in slot.holders.items() if key.draw <= filled.key.draw}
                for name in holders:
                    slots.let_go(slot, name)
                if slot.draw <= filled.key.draw:
                    slot.draw = filled.key.draw
                    slots.give_up(slot, "filtered")
                if not slot.holders:
                    slots.move(slot, SlotState.UNASSIGNED, f"{filled.key} filtered")
                return Accepted(holders, filtered=True)
            filled = slot.filtered[min(slot.filtered)]
        slot.accepted[filled.key.draw] = filled
        holders = dict(slot.holders)
        for name in holders:
            slots.let_go(slot, name)
        slots.move(slot, SlotState.FILLED, f"{filled.key} filled at {filled.partition}:{filled.offset}")
        return Accepted(holders, filtered=False)

    def fail(self, kind: Kind, key: Attempt, producer: str, failure: FailureKind, reason: str) -> Slot | None:
        """A producer gives a request back. Returns the slot if this freed it or opened its next draw, else None."""
        slot = self.slot(kind, key)
        if slot is None or slot.holders.get(producer) != key:
            return None
        slots = self._of(slot)
        slots.let_go(slot, producer)
        if slot.state is SlotState.FILLED:
            return None
        if key.draw == slot.draw:
            if failure is FailureKind.PROMPT:
                slots.give_up(slot, f"prompt: {reason}")
            elif failure is FailureKind.ROLLOUT:
                slot.attempts_failed += 1
                if slot.attempts_failed >= self.limits.max_attempts:
                    slots.give_up(slot, f"{slot.attempts_failed} attempts failed: {reason}")
        if not slot.holders:
            slots.move(slot, SlotState.UNASSIGNED, f"{key} {failure.value} at {producer}: {reason}")
        return slot

    def lose(self, producer: str) -> Lost:
        """A producer is gone: all that it held is free again; a draw that was lost too often is given up."""
        lost = Lost()
        for slots in self.open_versions.values():
            for slot, key in slots.held_by(producer):
                slots.let_go(slot, producer)
                if slot.state is SlotState.FILLED:
                    continue
                if key.draw == slot.draw:
                    slot.lost += 1
                    if slot.lost >= self.limits.max_lost:
                        reason = f"lost {slot.lost} times with its producer"
                        slots.give_up(slot, reason)
                        if slot.kind == "rollout":
                            lost.given_up.append(reason)
                if not slot.holders:
                    slots.move(slot, SlotState.UNASSIGNED, f"{key} lost with {producer}")
                    lost.requests += 1
        return lost

    def _of(self, slot: Slot) -> VersionSlots:
        return self.open_versions[slot.kind, slot.version]

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        for (kind, version), slots in self.open_versions.items():
            assert (slots.kind, slots.version) == (kind, version)
            if kind == "rollout":
                assert len(slots.slots) == self.prompts_per_step, (version, len(slots.slots))
            slots.validate()
