"""The dispatcher and producers that come, go, differ, are slow or send bad records."""

from __future__ import annotations

from typing import Any

import pytest

from learner.dispatcher.deciding import commands as cmd
from learner.dispatcher.deciding import events as ev
from schemas.records.status import ProducerState
from tests.fakes.dispatcher.driver import Driver, StateWritten, keys, of, requests, started
from tests.fakes.records.make import in_hand, key, make_dataset, make_heartbeat, make_left, make_operator, make_report

# --- producers that come and go -------------------------------------------------------------------------------------------------


def test_a_lease_is_judged_only_when_all_topics_are_read_past_the_beat() -> None:
    driver = started("p0", "p1", producer_count=2)
    commands = driver.beats(5, ["p0"])
    assert [c.beat for c in of(cmd.ReadPast, commands)] == [5]
    assert "p1" in driver.core.state.roster.producers
    commands = driver.on(ev.CaughtUp(5))
    assert "p1" not in driver.state.members
    assert {name for name, _ in keys(commands)} == {"p0"}
    assert driver.core.state.counters.failures == {"lost": len(keys(commands))}


def test_a_group_that_lay_unread_saves_its_slot_from_being_issued_again() -> None:
    driver = started("p0", "p1", producer_count=2)
    mine = [r for r in requests(driver.commands) if r.producer == "p1"]
    driver.beats(5, ["p0"])
    driver.publish(*mine)
    assert requests(driver.on(ev.CaughtUp(5))) == []


def test_a_heartbeat_that_lay_unread_saves_the_lease() -> None:
    driver = started("p0", "p1", producer_count=2)
    driver.beats(5, ["p0"])
    driver.heartbeat("p1")
    driver.on(ev.CaughtUp(5))
    assert set(driver.core.state.roster.producers) == {"p0", "p1"}


def test_without_beats_nobody_is_late() -> None:
    """A stalled broker or dispatcher makes no beats, whatever the clocks say."""
    driver = started()
    driver.on(ev.CaughtUp(0))
    assert driver.core.state.roster.producers.keys() == {"p0"}


def test_who_leaves_hands_back_at_once_and_it_is_not_counted_as_lost() -> None:
    driver = started("p0", "p1", producer_count=2)
    mine = [r for r in requests(driver.commands) if r.producer == "p1"]
    commands = driver.status(make_left("p1", [in_hand(r.key) for r in mine]))
    assert keys(commands) == [("p0", str(key(r.target, r.slot, 0, 1))) for r in mine]
    table = driver.core.state.slots
    assert [table.open_versions["rollout", r.target].slots[r.slot].lost for r in mine] == [0] * len(mine)


def test_a_producer_that_was_taken_for_lost_comes_back_with_what_it_has_in_hand() -> None:
    driver = started()
    mine = requests(driver.commands)
    driver.beats(5)
    driver.on(ev.CaughtUp(5))
    assert driver.state.members == {}
    report = make_report("p0", incarnation=0, held=0, digest="w0", requests_partition=0, in_hand=[in_hand(r.key) for r in mine])
    commands = driver.status(report)
    assert requests(commands) == []
    assert driver.state.members["p0"].held == 0
    assert len(driver.core.state.roster.producers["p0"].assigned) == len(mine)


def test_a_second_report_frees_what_the_producer_does_not_have() -> None:
    """It read the claim after requests of the new learner, or the requests went to a partition that it does not read."""
    driver = started()
    mine = requests(driver.commands)
    commands = driver.status(
        make_report("p0", incarnation=0, held=0, digest="w0", requests_partition=0, in_hand=[in_hand(mine[0].key)])
    )
    assert keys(commands, "cancel") == [("p0", str(r.key)) for r in mine[1:]]
    assert keys(commands) == [("p0", str(key(r.target, r.slot, 0, 1))) for r in mine[1:]]


def test_a_report_that_is_read_twice_changes_nothing() -> None:
    driver = started()
    assert driver.join("p0") == []


def test_answers_to_an_earlier_claim_are_not_taken_for_answers_to_this_one() -> None:
    driver = Driver(incarnation=9)
    driver.ready()
    driver.status(make_report("p0", incarnation=3))
    assert driver.core.state.roster.producers == {}


def test_a_draining_producer_gets_no_more_work_and_no_more_weights() -> None:
    driver = started("p0", "p1", producer_count=2)
    driver.status(make_operator("drain", "p1"), make_operator("drain", "nobody"))
    driver.fill(0)
    driver.ask()
    before = len(driver.commands)
    driver.train()
    assert driver.core.state.round is not None and set(driver.core.state.round.members) == {"p0"}
    driver.refit()
    assert {r.producer for r in requests(driver.commands[before:])} == {"p0"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"agreed": {"grpo.num_prompts_per_step": 3}}, "grpo.num_prompts_per_step: learner has 2, producer has 3"),
        ({"digests": {"model": "x", "tokenizer": "t", "environment": "e"}}, "model: learner has m, producer has x"),
        ({"plan_digest": "other"}, "would send and receive different tensors"),
        ({"dataset": make_dataset(rows=65)}, "data: learner knows"),
        ({"digests": {"model": "m", "tokenizer": "t", "environment": "other"}}, "environment: learner has e, producer has other"),
    ],
)
def test_a_producer_that_differs_is_refused_naming_the_key(changes: dict[str, Any], told: str) -> None:
    driver = Driver()
    driver.join("p0")
    driver.join("p1", **changes)
    assert set(driver.state.members) == {"p0"}
    assert told in driver.state.refused["p1"][0]


def test_a_refused_producer_sets_nothing_for_the_others() -> None:
    driver = Driver()
    driver.join("bad", agreed={}, digests={"model": "m", "tokenizer": "t", "environment": "bad"}, dataset=make_dataset(rows=1))
    assert driver.state.dataset is None
    driver.join("good")
    assert set(driver.state.members) == {"good"}
    assert driver.state.dataset == make_dataset()


def test_strange_status_records_are_counted_and_left() -> None:
    driver = started()
    commands = driver.status(make_heartbeat("nobody"))
    commands += driver.ack("p0", "pause", round=1, version=0)
    assert (commands, driver.core.state.counters.ignored_status) == ([], 2)


# --- slow ones, bad ones, and those that are asked to go ------------------------------------------------------------------------


def with_rates(driver: Driver, beats: int, slow: str, fast: tuple[str, ...]) -> list[cmd.Command]:
    """Beats in which the fast ones generate 100 tokens each and the slow one 1; the commands that followed."""
    before = len(driver.commands)
    totals = dict.fromkeys((slow, *fast), 0)
    for _ in range(beats):
        for name in totals:
            totals[name] += 1 if name == slow else 100
            driver.status(make_heartbeat(name, 0, engine_tokens=totals[name], digest=driver.digest))
        driver.beats(1)
    return driver.commands[before:]


def hedging(**dispatch: Any) -> Driver:
    """N = 3 over three producers; p1 and p2 have delivered, p0 has not, and rank 0 waits."""
    driver = started(
        "p0",
        "p1",
        "p2",
        producer_count=3,
        grpo={"num_prompts_per_step": 3, "max_trajectory_age_steps": 0},
        dispatch={"lease_beats": 1000, "stall_timeout_s": 1000, **dispatch},
    )
    driver.ask()
    return driver


def test_a_slot_of_a_producer_far_slower_than_the_fleet_is_tried_elsewhere_too_and_the_loser_is_cancelled() -> None:
    driver = hedging()
    mine = {r.producer: r for r in requests(driver.commands, "rollout")}
    commands = with_rates(driver, 4, "p0", ("p1", "p2"))
    assert requests(commands) == [], "rates are not known yet"
    driver.publish(mine["p1"], mine["p2"])
    (hedge,) = requests(with_rates(driver, 3, "p0", ("p1", "p2")), "rollout")
    assert (hedge.target, hedge.slot, hedge.draw, hedge.row) == (0, mine["p0"].slot, 0, mine["p0"].row)
    assert hedge.producer != "p0" and hedge.attempt == mine["p0"].attempt + 1
    assert driver.core.state.counters.hedged == 1 and driver.core.state.counters.reissued == 0
    assert requests(with_rates(driver, 3, "p0", ("p1", "p2"))) == [], "once"
    commands = driver.publish(hedge)
    (cancel,) = requests(commands, "cancel")
    assert (cancel.producer, cancel.key) == ("p0", mine["p0"].key)


def test_who_is_as_fast_as_the_others_is_not_hedged_however_long_the_rollout_is() -> None:
    driver = hedging()
    mine = {r.producer: r for r in requests(driver.commands, "rollout")}
    driver.publish(mine["p1"], mine["p2"])
    assert requests(with_rates(driver, 100, "nobody", ("p0", "p1", "p2"))) == []


def test_hedges_can_be_switched_off() -> None:
    driver = hedging(hedge_below=0)
    mine = {r.producer: r for r in requests(driver.commands, "rollout")}
    driver.publish(mine["p1"], mine["p2"])
    assert requests(with_rates(driver, 20, "p0", ("p1", "p2"))) == []


def test_three_refused_records_in_a_row_expel_their_producer_and_what_it_had_goes_to_others() -> None:
    driver = started("p0", "p1", producer_count=2, grpo={"num_prompts_per_step": 8}, dispatch={"max_attempts": 9})
    mine = [r for r in requests(driver.commands) if r.producer == "p0"]
    refusals = [ev.GroupRefused("rollout", r.target, str(r.key), "p0", "tokens") for r in mine[:4]]
    driver.on(refusals[0], refusals[1])
    driver.publish(mine[2])  # a good one in between: they are not in a row
    driver.on(refusals[0], refusals[1])
    assert "p0" in driver.core.state.roster.producers
    commands = driver.on(refusals[3])
    assert "p0" not in driver.state.members
    assert driver.state.refused["p0"] == ["3 of its records in a row were refused, the last: tokens"]
    assert {r.producer for r in requests(commands, "rollout")} == {"p1"}
    assert driver.core.state.counters.refusals == {"tokens": 5}


def test_a_draining_producer_gets_nothing_new_and_is_dismissed_when_it_has_nothing_left() -> None:
    driver = started("p0", "p1", producer_count=2)
    mine = [r for r in requests(driver.commands) if r.producer == "p0"]
    driver.status(make_operator("drain", "p0"))
    assert (driver.state.members["p0"].draining, driver.state.members["p0"].dismissed) == (True, False)
    for request in mine:
        assert not driver.state.members["p0"].dismissed
        commands = driver.publish(request)
        assert "p0" not in {r.producer for r in requests(commands, "rollout")}
    assert driver.state.members["p0"].dismissed


def test_a_drain_of_nobody_changes_nothing() -> None:
    driver = started("p0")
    published = len(driver.all(StateWritten))
    driver.status(make_operator("drain", "p7"))
    assert len(driver.all(StateWritten)) == published


def test_refused_producers_are_remembered_up_to_a_bound() -> None:
    driver = started("p0")
    for index in range(100):
        driver.status(make_report(f"wrong{index}", dataset=make_dataset(rows=5)))
    assert len(driver.state.refused) == 64 and "wrong99" in driver.state.refused


def test_who_is_a_member_of_a_round_is_dismissed_only_after_it() -> None:
    """The others of its transfer group wait for it."""
    driver = started("p0")
    driver.ask()
    driver.fill(0)
    driver.read_seal(0)
    driver.join("p1")
    driver.train()
    driver.ask()
    assert driver.core.state.round is not None and set(driver.core.state.round.members) == {"p0", "p1"}
    driver.status(make_operator("drain", "p1"))
    member = driver.state.members["p1"]
    assert member.draining and not member.dismissed
    driver.refit()
    assert driver.state.members["p1"].dismissed


def test_a_drain_outlives_the_learner_and_a_lapsed_lease() -> None:
    driver = started("p0", "p1", producer_count=2)
    driver.status(make_operator("drain", "p0"))
    driver.status(make_report("p0", incarnation=0, requests_partition=0))  # it was taken for lost, and says that it is here
    assert driver.state.members["p0"].draining
    after = Driver(inherited=driver.state)
    after.status(make_report("p0", incarnation=0, held=0, requests_partition=0))
    assert after.state.members["p0"].draining


def test_standing_still_for_a_round_is_not_being_slow() -> None:
    driver = hedging()
    mine = {r.producer: r for r in requests(driver.commands, "rollout")}
    driver.publish(mine["p1"], mine["p2"])
    totals = dict.fromkeys(("p0", "p1", "p2"), 0)
    for beat in range(40):
        paused = 10 <= beat < 30
        for name in totals:
            totals[name] += 0 if paused and name == "p0" else 100
            state = ProducerState.PAUSED if paused and name == "p0" else ProducerState.SERVING
            driver.status(make_heartbeat(name, 0, state=state, engine_tokens=totals[name], digest=driver.digest))
        driver.beats(1)
    assert driver.core.state.counters.hedged == 0


def test_a_slow_producer_is_no_help_for_another_slow_one() -> None:
    driver = started(
        *(f"p{i}" for i in range(5)),
        producer_count=5,
        grpo={"num_prompts_per_step": 5, "max_trajectory_age_steps": 0},
        dispatch={"lease_beats": 1000, "stall_timeout_s": 1000},
    )
    driver.ask()
    mine = {r.producer: r for r in requests(driver.commands, "rollout")}
    driver.publish(*(request for name, request in mine.items() if name != "p0"))
    totals = dict.fromkeys(mine, 0)
    for _ in range(10):
        for name in totals:
            totals[name] += 1 if name in ("p0", "p1") else 100
            driver.status(make_heartbeat(name, 0, engine_tokens=totals[name], digest=driver.digest))
        driver.beats(1)
    (hedge,) = [r for r in requests(driver.commands, "rollout") if r.slot == mine["p0"].slot and r.attempt == 1]
    assert hedge.producer in ("p2", "p3", "p4")
