"""Rounds: who is given weights, when, and what happens to those that fail to load them."""

from __future__ import annotations

from learner.dispatcher.deciding import commands as cmd
from learner.dispatcher.deciding import events as ev
from learner.link import messages
from schemas.weights.transports.protocol import Rendezvous
from tests.fakes.dispatcher.driver import of, requests, started
from tests.fakes.records.make import make_left


def test_every_version_is_given_to_everybody_before_the_next_is_opened() -> None:
    driver = started("p0", "p1", producer_count=2)
    driver.fill(0)
    driver.ask()
    driver.train()
    assert driver.core.state.round is not None
    assert (driver.core.state.round.version, set(driver.core.state.round.members)) == (1, {"p0", "p1"})
    driver.refit()
    assert (driver.state.frontier, list(driver.state.window)) == (1, [1, 2])


def test_rank_0_is_not_given_a_batch_while_a_round_waits_for_its_members() -> None:
    driver = started()
    driver.fill(0)
    driver.fill(1)
    driver.ask()
    driver.train()
    assert driver.core.state.round is not None
    assert of(cmd.HandOverBatch, driver.ask()) == []


def test_rank_0_trains_on_while_members_load() -> None:
    driver = started()
    driver.fill(0)
    driver.fill(1)
    driver.ask()
    driver.train()
    driver.ack("p0", "pause")
    driver.on(messages.RendezvousOpen([Rendezvous("host", 1, "x", None)]), messages.WeightsSent(driver.digest, {}))
    commands = driver.ask()
    assert [c.version for c in of(cmd.HandOverBatch, commands)] == [1]
    driver.ack("p0", "loaded")
    assert driver.state.frontier == 1


def test_a_newcomer_is_given_weights_while_rank_0_waits_and_the_others_work_on() -> None:
    driver = started()
    driver.join("p1")
    driver.ask()
    assert driver.core.state.round is None
    driver.beats(1, ["p0", "p1"])
    driver.join("p2")
    driver.beats(1, ["p0", "p1", "p2"])
    assert driver.core.state.round is not None
    assert set(driver.core.state.round.members) == {"p1", "p2"}
    driver.refit()
    assert (driver.state.frontier, driver.state.members["p2"].held) == (0, 0)


def test_a_newcomer_that_is_the_only_hope_waits_for_nothing() -> None:
    driver = started()
    driver.status(make_left("p0"))
    driver.ask()
    driver.join("p1")
    assert driver.core.state.round is not None and set(driver.core.state.round.members) == {"p1"}
    driver.refit()
    assert {r.producer for r in requests(driver.commands[-10:])} == {"p1"}


def test_a_newcomer_does_not_keep_rank_0_from_a_batch_that_is_there() -> None:
    driver = started()
    driver.join("p1")
    driver.beats(5, ["p0", "p1"])
    driver.fill(0)
    driver.ask()
    assert driver.core.state.round is None
    assert driver.last(cmd.HandOverBatch).version == 0
    driver.train()
    assert driver.core.state.round is not None and set(driver.core.state.round.members) == {"p0", "p1"}


def test_who_failed_to_load_has_another_round_and_the_others_go_on() -> None:
    driver = started("p0", "p1", producer_count=2, refit={"max_tries": 3})
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.refit(failing={"p1": "reset by peer"})
    assert (driver.state.frontier, driver.state.members["p0"].held, driver.state.members["p1"].held) == (1, 1, 0)
    driver.ask()
    driver.beats(2, ["p0", "p1"])
    assert driver.core.state.round is not None and set(driver.core.state.round.members) == {"p1"}
    driver.refit()
    assert driver.state.members["p1"].held == 1
    assert driver.core.state.roster.producers["p1"].failed_rounds == 0


def test_who_fails_max_tries_times_is_expelled_and_told_so() -> None:
    driver = started("p0", "p1", producer_count=2, refit={"max_tries": 2})
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.refit(failing={"p1": "first"})
    driver.ask()
    driver.beats(2, ["p0", "p1"])
    driver.refit(failing={"p1": "second"})
    assert set(driver.state.members) == {"p0"}
    assert driver.state.refused["p1"] == ["refit failed 2 times, the last: second"]
    assert driver.core.state.stop is None


def test_a_silent_member_ends_the_phase_by_its_deadline_or_its_lease() -> None:
    driver = started("p0", "p1", producer_count=2)
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.ack("p0", "pause")
    driver.beats(7, ["p0", "p1"])
    assert driver.last(messages.StartRefit).groups == [{"p0": 1}]
    other = started("p0", "p1", producer_count=2)
    other.fill(0)
    other.ask()
    other.train()
    other.ack("p0", "pause")
    other.beats(5, ["p0"])
    assert other.core.state.round is not None and other.core.state.round.waiting_for() == ["p1"]
    other.on(ev.CaughtUp(5))
    assert other.last(messages.StartRefit).groups == [{"p0": 1}]


def test_acks_of_an_earlier_round_do_not_end_this_one() -> None:
    driver = started()
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.ack("p0", "pause", round=1, version=0)
    driver.ack("p0", "pause", incarnation=5)
    assert driver.core.state.round is not None and driver.core.state.round.waiting_for() == ["p0"]


def test_a_version_is_announced_even_when_nobody_is_there_to_hear_it() -> None:
    driver = started()
    driver.fill(0)
    driver.ask()
    driver.status(make_left("p0"))
    driver.train()
    assert driver.last(messages.StartRefit) == messages.StartRefit(2, 1, [], [])
    driver.on(messages.RendezvousOpen([]), messages.WeightsSent("w1", {}))
    assert driver.state.frontier == 1


def test_acknowledged_weights_are_what_counts_not_what_was_sent() -> None:
    driver = started()
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.ack("p0", "pause")
    driver.on(messages.RendezvousOpen([Rendezvous("host", 1, "x", None)]), messages.WeightsSent("w1", {}))
    assert driver.state.members["p0"].held == 0
    driver.ack("p0", "loaded", digest="corrupt")
    assert (driver.state.frontier, driver.state.members["p0"].held) == (1, 0)
