from __future__ import annotations

from launch.observe.rounds_view import KEPT, RoundRow, RoundsView
from schemas.records.control import Member, Round, State
from tests.fakes.records.make import make_ack, make_state

DIGEST = "w"


def a_round(number: int = 1, version: int = 0, phase: str = "pause", members: tuple[str, ...] = ("p0", "p1")) -> Round:
    return Round(number=number, version=version, mode="keep", phase=phase, members=list(members))


def announced(version: int, *holders: str, others: tuple[str, ...] = (), incarnation: int = 0) -> State:
    """The state that ends a round of `version`: `holders` hold it."""
    members = {name: Member(requests_partition=0, held=version, digest=DIGEST) for name in holders}
    members |= {name: Member(requests_partition=0, held=version - 1, digest="older") for name in others}
    return make_state(incarnation=incarnation, frontier=version, weights_digest=DIGEST, members=members)


def whole_round(rounds: RoundsView, number: int, at: float) -> None:
    rounds.state(make_state(round=a_round(number, number)), at)
    rounds.state(make_state(round=a_round(number, number, "transfer")), at + 1)
    rounds.state(announced(number, "p0", "p1"), at + 3)


def only(rounds: RoundsView, now: float = 100.0) -> RoundRow:
    (row,) = rounds.rows(now)
    return row


def test_a_rounds_phases_and_its_result_stand_on_control() -> None:
    rounds = RoundsView()
    rounds.state(make_state(round=a_round(members=("p0", "p1", "p2"))), 10)
    rounds.state(make_state(round=a_round(phase="transfer", members=("p0", "p1"))), 11.5)  # p2 failed and is left out
    rounds.state(announced(0, "p0", others=("p1", "p2")), 14)
    row = only(rounds)
    assert (row.number, row.version, row.members, row.phase) == (1, 0, ("p0", "p1", "p2"), "done")
    assert (row.pause_s, row.transfer_s, row.loaded, row.failed) == (1.5, 2.5, 1, 2)


def test_a_running_rounds_phase_lasts_until_now() -> None:
    rounds = RoundsView()
    rounds.state(make_state(round=a_round()), 10)
    assert (only(rounds, 12).phase, only(rounds, 12).pause_s, only(rounds, 12).transfer_s) == ("pause", 2, None)
    rounds.state(make_state(round=a_round(phase="transfer")), 13)
    row = only(rounds, 17)
    assert (row.phase, row.pause_s, row.transfer_s, row.failed) == ("transfer", 3, 4, 0)


def test_a_round_may_follow_another_without_a_state_between() -> None:
    rounds = RoundsView()
    rounds.state(make_state(round=a_round(1, 0)), 0)
    after = announced(0, "p0", "p1").model_copy(update={"round": a_round(2, 0, members=("p2",))})
    rounds.state(after, 5)
    first, second = rounds.rows(6)
    assert (first.phase, first.pause_s, first.loaded) == ("done", 5, 2)
    assert (second.number, second.members, second.phase) == (2, ("p2",), "pause")


def test_a_claim_and_the_runs_end_give_a_round_up() -> None:
    for end in ("claim", "stop", "newer state"):
        rounds = RoundsView()
        rounds.state(make_state(round=a_round()), 0)
        match end:
            case "claim":
                rounds.claim(4)
            case "stop":
                stop = {"reason": "x", "v": 0, "resumable": True}
                rounds.state(State.model_validate({**make_state(round=a_round()).model_dump(by_alias=True), "stop": stop}), 4)
            case _:
                rounds.state(make_state(incarnation=7), 4)
        assert (only(rounds).phase, only(rounds).pause_s, only(rounds).failed) == ("given up", 4, 0), end


def test_acks_count_whether_they_are_read_before_or_after_their_round() -> None:
    for early in (True, False):
        rounds = RoundsView()
        acks = [
            make_ack("p0", "pause", seconds=9.0),
            make_ack("p0", "loaded", seconds=0.5),
            make_ack("p1", "loaded", seconds=0.7, ok=False, error="no route"),
            make_ack("p0", "loaded", seconds=3.0, incarnation=5),
        ]
        for ack in acks if early else ():
            rounds.ack(ack)
        rounds.state(make_state(round=a_round()), 0)
        rounds.state(announced(0, "p0", others=("p1",)), 1)
        for ack in () if early else acks:
            rounds.ack(ack)
        assert (only(rounds).load_s, only(rounds).errors) == (0.5, {"p1": "no route"})


def test_only_the_last_rounds_are_kept() -> None:
    rounds = RoundsView()
    for number in range(1, 3 * KEPT):
        rounds.ack(make_ack("p0", "loaded", round=number, seconds=number))
        whole_round(rounds, number, 10.0 * number)
    rows = rounds.rows(1000)
    assert [row.number for row in rows] == list(range(2 * KEPT, 3 * KEPT))
    assert [row.load_s for row in rows] == [row.number for row in rows]
    assert {(row.pause_s, row.transfer_s, row.loaded) for row in rows} == {(1, 2, 2)}
