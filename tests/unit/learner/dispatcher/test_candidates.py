"""Who gets the next request: room for its speed, the best first, and nobody twice who has none."""

from __future__ import annotations

from typing import Any

import pytest

from learner.dispatcher.state.candidates import Candidates
from learner.dispatcher.state.producer import Producer
from learner.dispatcher.state.roster import Roster
from tests.fakes.records.make import key, make_report


def make_roster(**producers: dict[str, Any]) -> Roster:
    """`speed`: tokens a beat (0: not measured yet), `capacity`, `busy`: requests in hand."""
    roster = Roster(4)
    for name, fields in producers.items():
        producer = roster.join(make_report(name, held=5, capacity=fields.get("capacity", 4)), 0)
        producer.tokens_per_beat = fields.get("speed", 0.0)
        for slot in range(fields.get("busy", 0)):
            roster.give(producer, "rollout", key(5, slot), 0)
    return roster


def order(roster: Roster, count: int, *, urgent: bool = False) -> list[str | None]:
    """Who gets the next requests, each given at once."""
    candidates = roster.candidates(5, 1, exact=False, urgent=urgent)
    given: list[str | None] = []
    for slot in range(count):
        producer = candidates.best()
        given.append(producer.name if producer is not None else None)
        if producer is not None:
            roster.give(producer, "rollout", key(6, slot), 0)
    return given


def test_room_is_counted_in_parts_of_the_capacity() -> None:
    assert order(make_roster(small={"capacity": 2}, large={"capacity": 8, "busy": 2}), 1) == ["large"]
    assert order(make_roster(small={"capacity": 2}, large={"capacity": 8, "busy": 6}), 1) == ["small"]


def test_who_was_never_measured_counts_as_fast_as_the_fastest() -> None:
    assert order(make_roster(new={"busy": 1}, slow={"speed": 5.0, "busy": 1}, fast={"speed": 20.0, "busy": 1}), 2) == [
        "fast",
        "new",
    ]


def test_speeds_are_relative_to_the_fastest_below_one_token_a_beat_too() -> None:
    roster = make_roster(slow={"speed": 0.2, "capacity": 8}, fast={"speed": 0.8, "capacity": 8})
    assert order(roster, 5) == ["fast", "fast", "fast", "fast", "slow"]


def test_the_slowest_is_still_given_something() -> None:
    """Its speed counts as a twentieth of the fastest at least, or it would never be measured again."""
    roster = make_roster(slow={"speed": 0.001, "capacity": 100}, fast={"speed": 100.0, "capacity": 10})
    assert order(roster, 6) == ["fast", "fast", "slow", "fast", "fast", "slow"]


def test_an_urgent_request_goes_over_the_capacity_by_one_once_nobody_has_room() -> None:
    roster = make_roster(p0={"capacity": 2, "busy": 1}, p1={"capacity": 1})
    assert order(roster, 5, urgent=True) == ["p0", "p1", "p0", "p1", None]
    assert order(make_roster(p0={"capacity": 1}), 2) == ["p0", None]


def test_who_is_left_out_for_one_request_stays_a_candidate_for_the_next() -> None:
    candidates = make_roster(p0={}, p1={"busy": 1}).candidates(5, 1, exact=False, urgent=False)
    found = [candidates.best({"p0"}), candidates.best({"p0", "p1"}), candidates.best()]
    assert [p and p.name for p in found] == ["p1", None, "p0"]


@pytest.mark.parametrize("full", [None, []])
def test_without_producers_there_is_nobody(full: list[Producer] | None) -> None:
    assert Candidates([], full).best() is None
