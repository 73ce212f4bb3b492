"""The table of slots: its moves, and that no other move changes anything."""

from __future__ import annotations

import copy

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from learner.dispatcher.state.slots import MOVES, Accepted, Filled, Limits, Slot, SlotState, SlotTable, VersionSlots
from schemas.errors import ProtocolError
from schemas.identity import Attempt
from schemas.records.status import FailureKind

LIMITS = Limits(max_attempts=3, max_draws=8, max_lost=2)


def make_table(versions: int = 1, slots: int = 2) -> SlotTable:
    table = SlotTable(slots, LIMITS)
    for version in range(versions):
        table.open("rollout", version)
    return table


def filled(at: Attempt, offset: int = 0) -> Filled:
    return Filled(at, 0, offset, "sha", "content", 1.0, 5)


def first(table: SlotTable) -> Slot:
    return table.open_versions["rollout", 0].slots[0]


@pytest.mark.parametrize("start", SlotState)
@pytest.mark.parametrize("end", SlotState)
def test_moves_are_those_of_the_table_and_another_changes_nothing(start: SlotState, end: SlotState) -> None:
    slots = VersionSlots("rollout", 3, 2)
    slot = slots.slots[1]
    slots.counts[slot.state] -= 1
    slots.counts[start] += 1
    slot.state = start
    before = dict(slots.counts)
    if start is end or (start, end) in MOVES:
        slots.move(slot, end, "event")
        assert slot.state is end and list(slot.history) == ["event"]
        assert slots.counts[end] == before[end] + (start is not end)
    else:
        with pytest.raises(ProtocolError, match=r"v00000003/s0001/d0/a0: .* on event; history"):
            slots.move(slot, end, "event")
        assert slot.state is start and not slot.history and slots.counts == before


def test_nothing_leaves_a_filled_slot() -> None:
    assert not [move for move in MOVES if move[0] is SlotState.FILLED]


def test_a_slot_is_assigned_and_filled() -> None:
    table = make_table()
    slot = first(table)
    at = table.assign(slot, "p0")
    assert (str(at), slot.state, slot.holders) == ("v00000000/s0000/d0/a0", SlotState.ASSIGNED, {"p0": at})
    assert table.accept("rollout", filled(at)) == Accepted({"p0": at}, filtered=False)
    assert (slot.state, slot.holders, slot.filled.key) == (SlotState.FILLED, {}, at)
    assert not table.open_versions["rollout", 0].complete
    table.validate()


@pytest.mark.parametrize("to", ["p0", "p1"])
def test_a_filled_slot_is_given_to_nobody_and_a_held_one_not_to_its_holder(to: str) -> None:
    table = make_table()
    at = table.assign(first(table), "p0")
    if to == "p1":
        table.accept("rollout", filled(at))
    before = copy.deepcopy(first(table))
    with pytest.raises(ProtocolError, match="not for"):
        table.assign(first(table), to)
    assert first(table) == before


def test_a_version_is_opened_once_and_has_all_its_slots() -> None:
    table = make_table()
    with pytest.raises(ProtocolError, match="open already"):
        table.open("rollout", 0)
    assert len(table.open("validation", 0, 5).slots) == 5
    assert [v.version for v in table.versions("rollout")] == [0]


def test_every_attempt_has_a_new_number() -> None:
    table = make_table()
    numbers = []
    for _ in range(2):
        at = table.assign(first(table), "p0")
        numbers.append(at.attempt)
        table.fail("rollout", at, "p0", FailureKind.ROLLOUT, "because")
    assert numbers == [0, 1]


def test_a_failed_prompt_opens_the_next_draw() -> None:
    table = make_table()
    at = table.assign(first(table), "p0")
    assert table.fail("rollout", at, "p0", FailureKind.PROMPT, "too long") is first(table)
    assert first(table).next_key == Attempt(0, 0, 1, 0)
    assert first(table).given_up == {0: "prompt: too long"}


def test_failed_rollouts_give_a_draw_up_after_max_attempts() -> None:
    table = make_table()
    seen = []
    for _ in range(4):
        at = table.assign(first(table), "p0")
        seen.append((at.draw, at.attempt))
        table.fail("rollout", at, "p0", FailureKind.ROLLOUT, "error")
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_work_that_is_handed_back_is_not_counted_against_its_prompt() -> None:
    table = make_table()
    for _ in range(20):
        at = table.assign(first(table), "p0")
        table.fail("rollout", at, "p0", FailureKind.LOST, "handed back")
    assert first(table).next_key == Attempt(0, 0, 0, 20)


def test_a_draw_that_is_lost_with_its_producers_is_given_up_after_max_lost() -> None:
    table = make_table(versions=2)
    other = table.assign(table.open_versions["rollout", 1].slots[1], "p1")
    for _ in range(LIMITS.max_lost):
        table.assign(first(table), "p0")
        assert table.lose("p0").requests == 1
    assert first(table).next_key == Attempt(0, 0, 1, 0)
    assert table.open_versions["rollout", 1].slots[1].holders == {"p1": other}


def test_failures_are_believed_only_from_the_holder_and_of_what_it_holds() -> None:
    table = make_table()
    at = table.assign(first(table), "p0")
    stranger = table.fail("rollout", at, "p1", FailureKind.PROMPT, "because")
    older = table.fail("rollout", Attempt(0, 0, 0, 7), "p0", FailureKind.PROMPT, "because")
    closed = table.fail("rollout", Attempt(9, 0, 0, 0), "p0", FailureKind.PROMPT, "because")
    assert (stranger, older, closed, first(table).draw) == (None, None, None, 0)


def test_a_late_group_of_an_earlier_attempt_fills_the_slot_and_names_who_works_on_it() -> None:
    table = make_table()
    early = table.assign(first(table), "p0")
    table.lose("p0")
    late = table.assign(first(table), "p1")
    assert table.accept("rollout", filled(early)) == Accepted({"p1": late}, filtered=False)
    assert table.accept("rollout", filled(late)) is None
    assert first(table).filled.key == early


def test_a_group_may_fill_a_slot_that_nobody_works_on() -> None:
    table = make_table()
    at = table.assign(first(table), "p0")
    table.fail("rollout", at, "p0", FailureKind.LOST, "handed back")
    assert table.accept("rollout", filled(at)) == Accepted({}, filtered=False)
    assert first(table).state is SlotState.FILLED


def test_the_lowest_accepted_draw_is_the_slots_whichever_came_first() -> None:
    """The prompt was given up and replaced, and then its group comes after all, before or after the other."""
    for order in ([0, 1], [1, 0]):
        table = make_table()
        at = table.assign(first(table), "p0")
        table.fail("rollout", at, "p0", FailureKind.PROMPT, "because")
        keys = [at, table.assign(first(table), "p1")]
        for draw in order:
            assert table.accept("rollout", filled(keys[draw], offset=draw)) is not None
        assert first(table).filled.key == at
        table.validate()


def test_the_first_record_of_a_draw_is_kept() -> None:
    table = make_table()
    at = table.assign(first(table), "p0")
    table.accept("rollout", filled(at, offset=3))
    assert table.accept("rollout", filled(Attempt(0, 0, 0, 1), offset=2)) is None
    assert first(table).filled.offset == 3


@pytest.mark.parametrize("slot", [-1, 2, 10**9])
def test_a_slot_that_the_version_does_not_have_is_nobodys(slot: int) -> None:
    table = make_table()
    at = Attempt(0, slot, 0, 0)
    assert table.slot("rollout", at) is None
    assert table.accept("rollout", filled(at)) is None
    assert not table.adopt("rollout", at, "p0")


def test_work_of_an_earlier_incarnation_is_adopted_and_its_numbers_are_not_given_again() -> None:
    table = make_table()
    assert table.adopt("rollout", Attempt(0, 0, 2, 5), "p0")
    assert table.adopt("rollout", Attempt(0, 0, 2, 3), "p1")
    assert first(table).next_key == Attempt(0, 0, 2, 6)
    assert not table.adopt("rollout", Attempt(0, 0, 1, 9), "p2")  # a draw that was given up meanwhile
    assert not table.adopt("rollout", Attempt(0, 0, 2, 9), "p0")  # it has one of this slot already
    assert not table.adopt("rollout", Attempt(9, 0, 0, 0), "p2")
    table.accept("rollout", filled(Attempt(0, 0, 2, 5)))
    assert not table.adopt("rollout", Attempt(0, 0, 2, 9), "p2")
    table.validate()


def test_a_validation_prompt_has_no_other_draw() -> None:
    table = make_table()
    slots = table.open("validation", 0, 2)
    at = table.assign(slots.slots[0], "p0")
    table.fail("validation", at, "p0", FailureKind.PROMPT, "too long")
    assert slots.slots[0].abandoned
    assert slots.next_free() is slots.slots[1]
    assert not slots.settled
    table.accept("validation", filled(table.assign(slots.slots[1], "p0")))
    assert slots.settled and not slots.complete


def test_draws_that_are_given_up_with_their_producers_are_told_with_the_reason() -> None:
    table = make_table()
    for _ in range(LIMITS.max_lost - 1):
        table.assign(first(table), "p0")
        assert table.lose("p0").given_up == []
    table.assign(first(table), "p0")
    assert table.lose("p0").given_up == [f"lost {LIMITS.max_lost} times with its producer"]


def test_a_filtered_group_opens_the_next_draw_until_there_were_max_draws() -> None:
    """The lowest of them is trained then, so that no filter can hold a step back."""
    table = make_table()
    for draw in range(LIMITS.max_draws - 1):
        at = table.assign(first(table), "p0")
        assert at == Attempt(0, 0, draw, 0)
        assert table.accept("rollout", filled(at, offset=draw), passes=False) == Accepted({"p0": at}, filtered=True)
        assert first(table).state is SlotState.UNASSIGNED
        table.validate()
    at = table.assign(first(table), "p0")
    table.accept("rollout", filled(at, offset=99), passes=False)
    assert first(table).filled.key == Attempt(0, 0, 0, 0)
    table.validate()


def test_a_group_that_passes_is_taken_before_the_filtered_ones() -> None:
    table = make_table()
    table.accept("rollout", filled(table.assign(first(table), "p0")), passes=False)
    at = table.assign(first(table), "p0")
    table.accept("rollout", filled(at))
    assert first(table).filled.key == at == Attempt(0, 0, 1, 0)
    late = Attempt(0, 0, 2, 0)
    assert table.accept("rollout", filled(late), passes=False) == Accepted({}, filtered=True)
    assert table.accept("rollout", filled(late)) is None, "the first record of a draw decides it"
    assert first(table).filled.key == at


class Table(RuleBasedStateMachine):
    """Any order of events keeps the table whole, and every slot can still be filled."""

    @initialize(slots=st.integers(1, 3))
    def open(self, slots: int) -> None:
        self.table = SlotTable(slots, LIMITS)
        self.table.open("rollout", 0)
        self.table.open("rollout", 1)
        self.issued: list[tuple[str, Attempt]] = []

    def any_slot(self, which: int) -> Slot:
        slots = [slot for version in self.table.versions("rollout") for slot in version.slots]
        return slots[which % len(slots)]

    @rule(which=st.integers(0, 100), producer=st.sampled_from(["a", "b", "c"]))
    def assign(self, which: int, producer: str) -> None:
        slot = self.any_slot(which)
        if slot.state is not SlotState.FILLED and producer not in slot.holders:
            at = self.table.assign(slot, producer)
            assert at not in [key for _, key in self.issued], "a key is issued once"
            self.issued.append((producer, at))

    @rule(which=st.integers(0, 1000), kind=st.sampled_from(FailureKind))
    def fail(self, which: int, kind: FailureKind) -> None:
        if self.issued:
            producer, at = self.issued[which % len(self.issued)]
            self.table.fail("rollout", at, producer, kind, "because")

    @rule(producer=st.sampled_from(["a", "b", "c"]))
    def lose(self, producer: str) -> None:
        self.table.lose(producer)
        assert not [slot for v in self.table.versions("rollout") for slot, _ in v.held_by(producer)]

    @rule(which=st.integers(0, 1000), passes=st.booleans())
    def accept(self, which: int, passes: bool) -> None:
        if self.issued:
            self.table.accept("rollout", filled(self.issued[which % len(self.issued)][1]), passes=passes)

    @rule(which=st.integers(0, 100), draw=st.integers(0, 3), attempt=st.integers(0, 9), producer=st.sampled_from(["a", "b"]))
    def adopt(self, which: int, draw: int, attempt: int, producer: str) -> None:
        slot = self.any_slot(which)
        at = Attempt(slot.version, slot.index, draw, attempt)
        if at not in [key for _, key in self.issued] and self.table.adopt("rollout", at, producer):
            self.issued.append((producer, at))

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "table"):
            self.table.validate()

    def teardown(self) -> None:
        if hasattr(self, "table"):
            for version in self.table.versions("rollout"):
                for slot in version.slots:
                    if slot.state is not SlotState.FILLED:
                        self.table.accept("rollout", filled(self.table.assign(slot, "d")))
                assert version.complete


TestTable = Table.TestCase


def test_open_versions_of_a_kind_are_the_lowest_first_however_they_were_opened() -> None:
    table = SlotTable(1, LIMITS)
    for kind, version in (("rollout", 7), ("validation", 9), ("rollout", 5), ("validation", 2)):
        table.open(kind, version)  # type: ignore[arg-type]
    assert [slots.version for slots in table.versions("rollout")] == [5, 7]
    assert [slots.version for slots in table.versions("validation")] == [2, 9]


def test_a_lost_producers_filled_slots_stay_filled_and_all_others_are_free() -> None:
    table = make_table(slots=3)
    slots = table.open_versions["rollout", 0]
    keys = [table.assign(slot, "p0") for slot in slots.slots]
    table.assign(slots.slots[0], "p1")
    slots.slots[0].holders["p0"] = keys[0]
    table.accept("rollout", filled(keys[0]))
    slots.hold(slots.slots[0], "p0", keys[0])  # its end is not read yet
    lost = table.lose("p0")
    assert lost.requests == 2
    assert [slot.state for slot in slots.slots] == [SlotState.FILLED, SlotState.UNASSIGNED, SlotState.UNASSIGNED]
    table.validate()


def test_validation_prompts_that_came_to_nothing_are_counted_whatever_becomes_of_them() -> None:
    table = SlotTable(3, LIMITS)
    slots = table.open("validation", 4, 3)
    keys = [table.assign(slot, "p0") for slot in slots.slots]
    for number in (0, 1):
        table.fail("validation", keys[number], "p0", FailureKind.PROMPT, "too long")
        table.validate()
    assert (slots.abandoned, slots.settled) == (2, False)
    table.accept("validation", filled(keys[0]))  # read after all
    table.validate()
    assert slots.abandoned == 1
    table.accept("validation", filled(keys[2]))
    assert slots.settled and not slots.complete


def test_a_slots_history_says_why_a_draw_was_given_up() -> None:
    table = make_table()
    slot = first(table)
    table.accept("rollout", filled(table.assign(slot, "p0")), passes=False)
    assert list(slot.history)[1:] == ["draw 0 given up: filtered", "v00000000/s0000/d0/a0 filtered"]
    for _ in range(LIMITS.max_lost):
        table.assign(slot, "p0")
        table.lose("p0")
    assert f"draw 1 given up: lost {LIMITS.max_lost} times with its producer" in slot.history
