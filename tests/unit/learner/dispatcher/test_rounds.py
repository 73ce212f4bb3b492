"""A refit round: its phases, whose answers count, and that it always ends."""

from __future__ import annotations

from typing import Any

import pytest

from learner.dispatcher.state.rounds import Phase, RefitRound
from schemas.errors import ProtocolError
from schemas.records.status import Ack
from schemas.weights.transports.protocol import Rendezvous
from tests.fakes.records.make import make_ack


def make_round(*members: str, **changes: Any) -> RefitRound:
    values: dict[str, Any] = {
        "number": 3,
        "incarnation": 7,
        "version": 12,
        "mode": "keep",
        "members": dict.fromkeys(members, 1),
        "group_size": None,
        "deadline_beats": 6,
        "drain_beats": 50,
        "opened_beat": 100,
    }
    return RefitRound(**{**values, **changes})


def ack(producer: str, phase: str = "pause", **changes: Any) -> Ack:
    digest = "w12" if phase == "loaded" else None
    return make_ack(producer, phase, **{"round": 3, "incarnation": 7, "version": 12, "digest": digest, **changes})


def paused(*members: str, **changes: Any) -> RefitRound:
    round_ = make_round(*members, **changes)
    for name in members:
        assert round_.on_ack(ack(name))
    return round_


def transferring(*members: str, **changes: Any) -> RefitRound:
    round_ = paused(*members, **changes)
    groups, _ = round_.offer(101)
    round_.transfer([Rendezvous("host", 1, f"prefix{i}", None) for i in range(len(groups))], 102)
    return round_


def test_a_round_goes_from_pause_to_transfer_to_its_end() -> None:
    round_ = make_round("p0", "p1")
    assert (round_.phase, round_.waiting_for()) == (Phase.PAUSE, ["p0", "p1"])
    round_.on_ack(ack("p0"))
    assert round_.waiting_for() == ["p1"]
    round_.on_ack(ack("p1"))
    assert round_.offer(101) == ([{"p0": 1, "p1": 2}], [3])
    assert round_.result() is None
    round_.transfer([Rendezvous("host", 1, "prefix", None)], 102)
    round_.sent("w12", {})
    assert round_.result() is None
    round_.on_ack(ack("p0", "loaded", probe_gap=0.25))
    round_.on_ack(ack("p1", "loaded"))
    result = round_.result()
    assert result is not None
    assert (result.loaded, result.failed, round_.gaps) == (frozenset({"p0", "p1"}), {}, {"p0": 0.25})
    assert round_.phase is Phase.DONE and result.loaded


def test_acks_may_come_before_rank_0_says_that_it_has_sent() -> None:
    round_ = transferring("p0")
    round_.on_ack(ack("p0", "loaded"))
    assert round_.result() is None
    round_.sent("w12", {})
    result = round_.result()
    assert result is not None and result.loaded == {"p0"}


@pytest.mark.parametrize(
    "changes", [{"round": 2}, {"incarnation": 6}, {"version": 11}, {"producer": "p9"}], ids=lambda changes: next(iter(changes))
)
@pytest.mark.parametrize("phase", ["pause", "loaded"])
def test_answers_of_another_round_incarnation_version_or_producer_do_not_count(changes: dict[str, Any], phase: str) -> None:
    round_ = make_round("p0") if phase == "pause" else transferring("p0")
    record = ack("p0", phase).model_copy(update=changes)
    assert not round_.on_ack(record)
    assert round_.waiting_for() == ["p0"]


def test_answers_of_another_phase_do_not_count() -> None:
    assert not make_round("p0").on_ack(ack("p0", "loaded"))
    assert not transferring("p0").on_ack(ack("p0", "pause"))
    assert not transferring("p0").on_ack(ack("p0", "loaded", digest=None))


@pytest.mark.parametrize("round_", [make_round("p0"), transferring("p0")], ids=["before", "after"])
def test_moves_out_of_order_are_our_own_mistake_and_change_nothing(round_: RefitRound) -> None:
    phase = round_.phase
    with pytest.raises(ProtocolError):
        round_.transfer([], 100) if phase is Phase.TRANSFER else round_.sent("w12", {})
    with pytest.raises(ProtocolError):
        round_.offer(100) if phase is Phase.TRANSFER else round_.transfer([], 100)
    assert round_.phase is phase


def test_a_rendezvous_is_needed_for_each_group() -> None:
    round_ = paused("p0", "p1", group_size=1)
    round_.offer(101)
    with pytest.raises(ProtocolError, match="1 rendezvous for 2 transfer groups"):
        round_.transfer([Rendezvous("host", 1, "prefix", None)], 101)


def test_who_says_that_it_failed_is_waited_for_no_more() -> None:
    round_ = make_round("p0", "p1")
    round_.on_ack(ack("p0", ok=False, error="no room"))
    assert round_.waiting_for() == ["p1"]
    assert not round_.on_ack(ack("p0"))
    round_.on_ack(ack("p1"))
    assert round_.offer(101) == ([{"p1": 1}], [2])
    round_.transfer([Rendezvous("host", 1, "prefix", None)], 101)
    round_.sent("w12", {})
    round_.on_ack(ack("p1", "loaded"))
    result = round_.result()
    assert result is not None and result.failed == {"p0": "no room"}


@pytest.mark.parametrize("phase", ["pause", "transfer"])
def test_a_phase_ends_by_its_deadline_for_those_who_are_silent(phase: str) -> None:
    round_ = make_round("p0", "p1") if phase == "pause" else transferring("p0", "p1")
    round_.on_ack(ack("p0", "pause" if phase == "pause" else "loaded"))
    for beat in range(100, round_.phase_beat + 6 + 1):
        round_.on_beat(beat)
        assert round_.waiting_for() == ["p1"]
    round_.on_beat(round_.phase_beat + 7)
    assert round_.waiting_for() == []
    assert round_.failed == {"p1": f"no ack of phase {phase} within 6 beats"}


def test_draining_has_the_deadline_of_rollouts() -> None:
    round_ = make_round("p0", mode="drain")
    round_.on_beat(150)
    assert round_.waiting_for() == ["p0"]
    round_.on_beat(151)
    assert round_.waiting_for() == []
    transfer = transferring("p0", mode="drain")
    transfer.on_beat(109)
    assert transfer.waiting_for() == []


def test_the_offer_waits_for_rank_0_without_a_deadline() -> None:
    round_ = paused("p0")
    round_.offer(101)
    round_.on_beat(10_000)
    assert round_.failed == {}


def test_a_lost_member_ends_the_wait_for_it_at_once() -> None:
    round_ = make_round("p0", "p1")
    round_.on_ack(ack("p0"))
    round_.on_lost("p1")
    round_.on_lost("stranger")
    assert (round_.waiting_for(), round_.failed) == ([], {"p1": "lost during the round"})


def test_who_loaded_and_then_was_lost_has_loaded() -> None:
    round_ = transferring("p0")
    round_.on_ack(ack("p0", "loaded"))
    round_.on_lost("p0")
    assert round_.failed == {}


def test_other_weights_than_were_sent_are_a_failed_load() -> None:
    round_ = transferring("p0", "p1")
    round_.on_ack(ack("p0", "loaded", digest="other"))
    round_.on_ack(ack("p1", "loaded"))
    round_.sent("w12", {})
    result = round_.result()
    assert result is not None
    assert (result.loaded, result.failed) == (frozenset({"p1"}), {"p0": "loaded other, sent w12"})


def test_groups_fail_alone_and_who_had_all_of_it_has_loaded() -> None:
    round_ = transferring("p0", "p1", "p2", "p3", group_size=2)
    round_.on_ack(ack("p0", "loaded"))
    round_.sent("w12", {0: "reset by peer"})
    assert round_.failed == {"p1": "sending failed: reset by peer"}
    assert round_.waiting_for() == ["p2", "p3"]
    assert not round_.on_ack(ack("p1", "loaded"))
    round_.on_ack(ack("p2", "loaded"))
    round_.on_ack(ack("p3", "loaded"))
    result = round_.result()
    assert result is not None
    assert (result.loaded, set(result.failed)) == (frozenset({"p0", "p2", "p3"}), {"p1"})


@pytest.mark.parametrize(
    ("size", "groups", "worlds"),
    [
        (None, [{"a": 1, "b": 2, "c": 4}], [5]),
        (2, [{"a": 1, "b": 2}, {"c": 1}], [4, 2]),
        (1, [{"a": 1}, {"b": 1}, {"c": 1}], [2, 3, 2]),
    ],
)
def test_members_are_dealt_with_a_rank_for_each_of_their_workers(
    size: int | None, groups: list[dict[str, int]], worlds: list[int]
) -> None:
    round_ = make_round(members={"a": 1, "b": 2, "c": 1}, group_size=size)
    for name in "cab":
        round_.on_ack(ack(name))
    assert round_.offer(101) == (groups, worlds)


def test_those_who_failed_before_stand_apart_from_those_who_did_not() -> None:
    round_ = paused("a", "b", "c", "d", tries={"b": 1, "c": 2, "d": 1})
    assert round_.offer(101) == ([{"a": 1}, {"b": 1, "d": 2}, {"c": 1}], [2, 3, 2])


def test_an_empty_round_is_fine() -> None:
    round_ = make_round()
    assert round_.waiting_for() == []
    assert round_.offer(100) == ([], [])
    round_.transfer([], 100)
    round_.sent("w12", {})
    result = round_.result()
    assert result is not None and (result.loaded, result.failed) == (frozenset(), {})


def test_a_member_lost_after_the_deal_keeps_its_rank_so_that_the_others_agree_with_rank_0() -> None:
    round_ = paused("p0", "p1")
    groups, _ = round_.offer(101)
    round_.on_lost("p1")
    round_.transfer([Rendezvous("host", 1, "prefix", None)], 102)
    facts = round_.facts()
    assert (facts.members, facts.groups[0].members, facts.groups[0].world) == (("p0",), groups[0], 3)


def test_the_state_shows_members_while_pausing_and_their_groups_while_transferring() -> None:
    facts = make_round("p0", "p1", group_size=1).facts()
    assert (facts.number, facts.version, facts.mode, facts.transferring, facts.groups) == (3, 12, "keep", False, ())
    facts = transferring("p0", "p1", group_size=1).facts()
    assert facts.transferring
    assert [(g.prefix, g.world, g.members) for g in facts.groups] == [("prefix0", 2, {"p0": 1}), ("prefix1", 2, {"p1": 1})]


def test_a_transfer_has_the_rendezvous_that_rank_0_gave_each_group() -> None:
    round_ = paused("p0", "p1", group_size=1)
    round_.offer(101)
    round_.transfer([Rendezvous("h0", 5, "a"), Rendezvous(nccl_id="id")], 102)
    groups = [(g.host, g.port, g.prefix, g.nccl_id) for g in round_.facts().groups]
    assert groups == [("h0", 5, "a", None), ("", 0, "", "id")]


def test_a_failed_ack_counts_and_so_does_one_that_comes_twice_not() -> None:
    round_ = make_round("p0")
    assert round_.on_ack(ack("p0", ok=False, error="no room")) is True
    assert round_.on_ack(ack("p0", ok=False, error="no room")) is False


def test_each_phase_has_its_own_deadline() -> None:
    round_ = make_round("p0", "p1")
    round_.on_ack(ack("p0"))
    round_.on_ack(ack("p1"))
    round_.offer(150)
    assert (round_.phase, round_.phase_beat) == (Phase.OFFER, 150)
    round_.on_beat(10_000)
    assert round_.failed == {}, "rank 0 opens its rendezvous: its death ends the process, no beat does"
    round_.transfer([Rendezvous("host", 1, "prefix")], 10_001)
    round_.on_beat(10_007)
    assert round_.failed == {}
    round_.on_beat(10_008)
    assert set(round_.failed) == {"p0", "p1"}


def test_who_neither_paused_nor_failed_is_dealt_to_nobody() -> None:
    round_ = make_round("p0", "p1")
    round_.on_ack(ack("p0"))
    round_.on_lost("p1")
    assert round_.offer(101) == ([{"p0": 1}], [2])
