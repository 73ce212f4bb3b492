"""The dispatcher's decisions: events in, commands out. `Driver` asserts its invariants after each event."""

from __future__ import annotations

from typing import Any

import pytest

from learner.dispatcher import events as ev
from schemas.draws import row_of
from schemas.errors import ProtocolError
from schemas.status import FailureKind, ProducerState
from tests.fakes.dispatching import Driver, foreign_seal, keys, make_group_read, of, requests
from tests.fakes.records import (
    UUID,
    in_hand,
    key,
    make_dataset,
    make_failed,
    make_heartbeat,
    make_left,
    make_operator,
    make_report,
    make_state,
)


def started(*names: str, validation_rows: int | None = None, **sections: Any) -> Driver:
    """A run whose first round is over: version 0 is announced and given out."""
    driver = Driver(**sections)
    driver.start(*names, validation_rows=validation_rows)
    return driver


def wide(**grpo: Any) -> dict[str, Any]:
    return {"grpo": grpo, "dispatch": {"start_timeout_s": 10, "stall_timeout_s": 12}}


# --- the first round ------------------------------------------------------------------------------------------------------------


def test_the_first_state_says_that_nothing_was_announced() -> None:
    state = Driver().state
    assert (state.F, state.window, state.members, state.round, state.stop) == (None, {}, {}, None, None)


def test_the_first_round_waits_for_the_producers_that_were_ordered() -> None:
    driver = Driver(producer_count=2)
    driver.ready()
    driver.join("p0")
    assert driver.ask() == []
    assert driver.core.waits_for() == "2 producers, 1 joined"
    commands = driver.join("p1")
    assert driver.core.round is not None and set(driver.core.round.members) == {"p0", "p1"}
    record = of(ev.PublishState, commands)[-1].state.round
    assert record is not None and (record.phase, record.members, record.version) == ("pause", ["p0", "p1"], 0)


def test_the_first_round_goes_on_without_those_who_do_not_come() -> None:
    driver = Driver(producer_count=2, dispatch={"start_timeout_s": 10})
    driver.ready()
    driver.join("p0")
    driver.ask()
    driver.beats(10, ["p0"])
    assert driver.core.round is None
    driver.beats(1, ["p0"])
    assert driver.core.round is not None


def test_the_first_round_waits_for_rank_0_and_never_starts_with_nobody() -> None:
    driver = Driver(dispatch={"start_timeout_s": 10})
    driver.join("p0")
    driver.beats(3, ["p0"])
    assert driver.core.round is None
    alone = Driver(dispatch={"start_timeout_s": 10})
    alone.ready()
    alone.ask()
    alone.beats(50)
    assert alone.core.round is None


def test_the_first_round_announces_and_opens_the_window() -> None:
    driver = Driver()
    driver.ready()
    driver.join("p0")
    driver.ask()
    commands = driver.refit()
    state = driver.state
    assert (state.F, state.weights_digest, state.round) == (0, "w0", None)
    assert (state.members["p0"].held, state.members["p0"].digest) == (0, "w0")
    assert state.window == {0: "id-rollout-0", 1: "id-rollout-1"}
    assert keys(commands)[:2] == [("p0", "v00000000/s0000/d0/a0"), ("p0", "v00000000/s0001/d0/a0")]


def test_states_are_published_before_what_they_announce() -> None:
    driver = Driver()
    driver.ready()
    driver.join("p0")
    driver.ask()
    for command in driver.refit():
        if isinstance(command, ev.SendRequest):
            pytest.fail("a request came before the state that opens its version")
        if isinstance(command, ev.PublishState) and command.state.window:
            break


def test_rank_0_must_send_what_the_dispatcher_planned() -> None:
    with pytest.raises(ProtocolError, match="plan"):
        Driver().on(ev.LearnerReady(0, "another", "w0"))


# --- requests -------------------------------------------------------------------------------------------------------------------


def test_a_request_says_all_that_a_producer_must_know() -> None:
    driver = started(grpo={"max_trajectory_age_steps": 2})
    request = requests(driver.commands)[0]
    assert (request.uuid, request.kind, request.producer, request.incarnation) == (UUID, "rollout", "p0", 0)
    assert (request.T, request.slot, request.draw, request.attempt, request.min_version) == (0, 0, 0, 0, 0)
    assert request.row == row_of(3, 64, 2, 0, 0, 0)
    assert request.sampling is not None and (request.sampling.n, request.sampling.max_new_tokens) == (2, 5)
    later = [r for r in requests(driver.commands) if r.T == 1]
    assert [r.min_version for r in later] == [0, 0]


def test_lowest_versions_first_and_no_more_than_a_producer_can_take() -> None:
    driver = Driver(grpo={"num_prompts_per_step": 3})
    driver.ready()
    driver.join("p0", capacity=4)
    driver.ask()
    commands = driver.refit()
    assert [(r.T, r.slot) for r in requests(commands)] == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_a_short_step_may_exceed_the_capacity_by_one() -> None:
    """All room is taken by the next version when a slot of the present one comes back."""
    driver = Driver(grpo={"num_prompts_per_step": 2})
    driver.ready()
    driver.join("p0", capacity=3)
    driver.ask()
    first = requests(driver.refit())[0]
    assert len(driver.core.roster.producers["p0"].assigned) == 3
    commands = driver.status(make_left("p9"))
    assert requests(commands) == []
    commands = driver.fail(first, FailureKind.LOST)
    assert keys(commands) == [("p0", "v00000000/s0000/d0/a1")]
    assert len(driver.core.roster.producers["p0"].assigned) == 3
    full = Driver(grpo={"num_prompts_per_step": 4})
    full.ready()
    full.join("p0", capacity=3)
    full.ask()
    assert len(requests(full.refit())) == 4


def test_work_goes_only_to_acknowledged_weights_that_are_young_enough() -> None:
    """The learner holds version 1 and T = 1 is open; a producer that still holds 0 may work for it with A = 1, not with A = 0."""
    for max_age, expected in ((1, True), (0, False)):
        driver = started("p0", "p1", producer_count=2, grpo={"max_trajectory_age_steps": max_age})
        driver.fill(0)
        driver.ask()
        driver.train()
        commands = driver.refit(failing={"p1": "reset by peer"})
        assert driver.state.F == 1
        assert any(r.producer == "p1" and r.T >= 1 for r in requests(driver.commands)) is expected
        assert all(r.T - max_age <= (1 if r.producer == "p0" else 0) for r in requests(commands))


def test_a_higher_version_opens_when_all_lower_ones_are_given_out() -> None:
    driver = Driver(grpo={"num_prompts_per_step": 6})
    driver.ready()
    driver.join("p0", capacity=4)
    driver.ask()
    driver.refit()
    assert list(driver.state.window) == [0]
    held = sorted(r.slot for r in requests(driver.commands))
    driver.group(key(0, held[0]))
    assert list(driver.state.window) == [0, 1]


# --- groups and seals -----------------------------------------------------------------------------------------------------------


def test_a_full_version_is_sealed_with_where_its_groups_lie() -> None:
    driver = started()
    driver.on(make_group_read(key(0, 1), offset=7))
    assert driver.all(ev.WriteSeal) == []
    driver.on(make_group_read(key(0, 0), offset=9))
    seal = driver.last(ev.WriteSeal).seal
    assert (seal.run, seal.incarnation, seal.version, list(seal.slots)) == (UUID, 0, 0, [0, 1])
    assert (seal.slots[0].offset, seal.slots[1].offset, seal.slots[0].sha256) == (9, 7, f"sha-{key(0, 0)}")


def test_versions_are_sealed_in_order() -> None:
    driver = started()
    for slot in (0, 1):
        driver.group(key(1, slot))
    assert driver.all(ev.WriteSeal) == []
    for slot in (0, 1):
        driver.group(key(0, slot))
    assert [c.seal.version for c in driver.all(ev.WriteSeal)] == [0]
    driver.read_seal(0)
    assert [c.seal.version for c in driver.all(ev.WriteSeal)] == [0, 1]


def test_the_first_seal_in_the_log_is_the_batch_whoever_wrote_it() -> None:
    driver = started()
    for slot in (0, 1):
        driver.group(key(0, slot))
    own = driver.last(ev.WriteSeal).seal
    other = foreign_seal(0)
    driver.on(ev.SealRead(other, 5))
    driver.on(ev.SealRead(own, 6))
    driver.ask()
    batch = driver.last(ev.AnswerBatch)
    assert (batch.seal, batch.seal_offset) == (other, 5)


def test_a_seal_that_lies_there_ends_the_work_on_its_version() -> None:
    driver = started()
    commands = driver.on(ev.SealRead(foreign_seal(0), 5))
    assert keys(commands, "cancel") == [("p0", "v00000000/s0000/d0/a0"), ("p0", "v00000000/s0001/d0/a0")]
    assert (driver.state.sealed_through, list(driver.state.window)) == (0, [1])
    assert driver.all(ev.WriteSeal) == []


def test_a_higher_seal_may_be_read_before_a_lower_one() -> None:
    driver = started()
    driver.on(ev.SealRead(foreign_seal(1), 5))
    assert (driver.state.sealed_through, driver.state.window) == (1, {})
    driver.on(ev.SealRead(foreign_seal(0), 5))
    driver.ask()
    assert driver.last(ev.AnswerBatch).version == 0


def test_late_and_doubled_groups_are_counted_and_left() -> None:
    driver = started()
    driver.group(key(0, 0))
    driver.group(key(0, 0))
    assert (driver.core.counters.duplicates, driver.core.counters.late) == (1, 0)
    driver.group(key(0, 1))
    driver.read_seal(0)
    commands = driver.group(key(0, 1))
    assert (commands, driver.core.counters.late) == ([], 1)
    assert driver.core.counters.as_metrics() == {"dispatch/reissued": 0, "dispatch/duplicates": 1, "dispatch/late": 1}


def test_the_loser_of_a_slot_is_cancelled() -> None:
    """A producer was taken for lost, its slot was given to another, and then its group comes after all."""
    driver = started("p0", "p1", producer_count=2)
    first = next(r for r in requests(driver.commands) if r.producer == "p0")
    driver.status(make_left("p0"))
    again = next(r for r in requests(driver.commands) if r.producer == "p1" and r.slot == first.slot and r.T == first.T)
    assert again.attempt == first.attempt + 1
    commands = driver.group(first.key, "p0")
    assert keys(commands, "cancel") == [("p1", str(again.key))]


def test_two_holders_of_one_key_are_told_apart_by_name() -> None:
    """Attempts start at 0 again with a new learner, so an old producer's group may carry the key that another has in hand."""
    driver = started()
    request = requests(driver.commands)[0]
    commands = driver.group(request.key, "an earlier producer")
    assert keys(commands, "cancel") == [("p0", str(request.key))]


def test_a_refused_record_is_a_failed_rollout_of_its_producer() -> None:
    driver = started()
    commands = driver.on(ev.GroupRefused("rollout", 0, str(key(0, 0)), "p0", "age"))
    assert keys(commands) == [("p0", "v00000000/s0000/d0/a1")]
    assert driver.core.counters.refusals == {"age": 1}
    assert driver.on(ev.GroupRefused("rollout", 0, None, None, "malformed")) == []


# --- failures -------------------------------------------------------------------------------------------------------------------


def test_a_prompt_failure_opens_the_next_draw_with_its_own_row() -> None:
    driver = started()
    first = requests(driver.commands)[0]
    again = requests(driver.fail(first, FailureKind.PROMPT))[0]
    assert (again.slot, again.draw, again.attempt, again.row) == (0, 1, 0, row_of(3, 64, 2, 0, 0, 1))


def test_a_rollout_failure_is_tried_max_attempts_times_and_then_the_next_draw() -> None:
    driver = started(dispatch={"max_attempts": 2})
    request = requests(driver.commands)[0]
    seen = []
    for _ in range(3):
        request = requests(driver.fail(request, FailureKind.ROLLOUT))[0]
        seen.append((request.draw, request.attempt))
    assert seen == [(0, 1), (1, 0), (1, 1)]
    assert driver.core.counters.failures == {"rollout": 3}


def test_what_is_handed_back_is_issued_again_as_often_as_it_comes() -> None:
    driver = started()
    request = requests(driver.commands)[0]
    for attempt in range(1, 12):
        request = requests(driver.fail(request, FailureKind.LOST))[0]
        assert (request.draw, request.attempt) == (0, attempt)
    assert driver.core.stop is None


def test_a_draw_that_takes_its_producers_with_it_is_given_up_after_max_lost() -> None:
    driver = Driver(grpo={"num_prompts_per_step": 1}, dispatch={"max_lost": 2})
    driver.start("p0")
    for name in ("p1", "p2"):
        driver.status(make_left(driver.last(ev.SendRequest).request.producer))
        driver.join(name)
        driver.ask()
        driver.refit()
    draws = [r.draw for r in requests(driver.commands) if r.T == 0]
    assert draws == [0, 0, 1]


def test_failures_of_what_nobody_holds_change_nothing() -> None:
    driver = started()
    assert driver.status(make_failed("p0", key(7, 0), FailureKind.PROMPT)) == []
    assert driver.status(make_failed("p9", key(0, 0), FailureKind.PROMPT)) == []
    assert driver.status(make_failed("p0", key(0, 0, 0, 5), FailureKind.PROMPT)) == []


def test_too_many_failed_draws_end_the_run_naming_the_commonest_cause() -> None:
    driver = started(grpo={"num_prompts_per_step": 2})
    request = requests(driver.commands)[0]
    for turn in range(5):
        assert driver.core.stop is None
        found = requests(driver.fail(request, FailureKind.PROMPT, "the judge is down" if turn else "too long"))
        request = found[0] if found else request
    stop = driver.state.stop
    assert stop is not None and stop.resumable
    assert stop.reason == "5 of the last 5 draws failed, 4 with: the judge is down"
    driver.ask()
    assert driver.last(ev.AnswerStop) == ev.AnswerStop(stop.reason, finished=False)


def test_half_of_the_draws_may_fail() -> None:
    driver = started(grpo={"num_prompts_per_step": 1, "max_num_steps": 100})
    for version in range(20):
        request = requests(driver.commands)[-1]
        while request.T != version:
            request = next(r for r in reversed(requests(driver.commands)) if r.T == version)
        driver.fail(request, FailureKind.PROMPT)
        driver.step()
    assert driver.core.stop is None


def test_a_long_rollout_is_left_alone_and_one_that_stands_still_is_given_to_another() -> None:
    driver = started("p0", "p1", producer_count=2, **wide(num_prompts_per_step=1))
    first = next(r for r in requests(driver.commands) if r.producer == "p0")
    assert requests(driver.beats(100, ["p0", "p1"])) == []
    commands = []
    for _ in range(12):
        driver.heartbeat("p0", grown=False)
        commands += driver.beats(1, ["p1"])
    assert ("p0", str(first.key)) in keys(commands, "cancel")
    assert [r.producer for r in requests(commands) if r.T == first.T and r.slot == first.slot] == ["p1"]
    assert driver.core.counters.failures["rollout"] >= 1


# --- producers that come and go -------------------------------------------------------------------------------------------------


def test_a_lease_is_judged_only_when_all_topics_are_read_past_the_beat() -> None:
    driver = started("p0", "p1", producer_count=2)
    commands = driver.beats(5, ["p0"])
    assert [c.beat for c in of(ev.ReadPast, commands)] == [5]
    assert "p1" in driver.core.roster.producers
    commands = driver.on(ev.CaughtUp(5))
    assert "p1" not in driver.state.members
    assert {name for name, _ in keys(commands)} == {"p0"}
    assert driver.core.counters.failures == {"lost": len(keys(commands))}


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
    assert set(driver.core.roster.producers) == {"p0", "p1"}


def test_without_beats_nobody_is_late() -> None:
    """A stalled broker or dispatcher makes no beats, whatever the clocks say."""
    driver = started()
    driver.on(ev.CaughtUp(0))
    assert driver.core.roster.producers.keys() == {"p0"}


def test_who_leaves_hands_back_at_once_and_it_is_not_counted_as_lost() -> None:
    driver = started("p0", "p1", producer_count=2)
    mine = [r for r in requests(driver.commands) if r.producer == "p1"]
    commands = driver.status(make_left("p1", [in_hand(r.key) for r in mine]))
    assert keys(commands) == [("p0", str(key(r.T, r.slot, 0, 1))) for r in mine]
    table = driver.core.table
    assert [table.open_versions["rollout", r.T].slots[r.slot].lost for r in mine] == [0] * len(mine)


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
    assert len(driver.core.roster.producers["p0"].assigned) == len(mine)


def test_a_second_report_frees_what_the_producer_does_not_have() -> None:
    """It read the claim after requests of the new learner, or the requests went to a partition that it does not read."""
    driver = started()
    mine = requests(driver.commands)
    commands = driver.status(
        make_report("p0", incarnation=0, held=0, digest="w0", requests_partition=0, in_hand=[in_hand(mine[0].key)])
    )
    assert keys(commands, "cancel") == [("p0", str(r.key)) for r in mine[1:]]
    assert keys(commands) == [("p0", str(key(r.T, r.slot, 0, 1))) for r in mine[1:]]


def test_a_report_that_is_read_twice_changes_nothing() -> None:
    driver = started()
    assert driver.join("p0") == []


def test_answers_to_an_earlier_claim_are_not_taken_for_answers_to_this_one() -> None:
    driver = Driver(incarnation=9)
    driver.ready()
    driver.status(make_report("p0", incarnation=3))
    assert driver.core.roster.producers == {}


def test_a_draining_producer_gets_no_more_work_and_no_more_weights() -> None:
    driver = started("p0", "p1", producer_count=2)
    driver.status(make_operator("drain", "p1"), make_operator("drain", "nobody"))
    driver.fill(0)
    driver.ask()
    before = len(driver.commands)
    driver.train()
    assert driver.core.round is not None and set(driver.core.round.members) == {"p0"}
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
    assert (commands, driver.core.counters.ignored_status) == ([], 2)


# --- rounds ---------------------------------------------------------------------------------------------------------------------


def test_every_version_is_given_to_everybody_before_the_next_is_opened() -> None:
    driver = started("p0", "p1", producer_count=2)
    driver.fill(0)
    driver.ask()
    driver.train()
    assert driver.core.round is not None
    assert (driver.core.round.version, set(driver.core.round.members)) == (1, {"p0", "p1"})
    driver.refit()
    assert (driver.state.F, list(driver.state.window)) == (1, [1, 2])


def test_rank_0_is_not_given_a_batch_while_a_round_waits_for_its_members() -> None:
    driver = started()
    driver.fill(0)
    driver.fill(1)
    driver.ask()
    driver.train()
    assert driver.core.round is not None
    assert of(ev.AnswerBatch, driver.ask()) == []


def test_rank_0_trains_on_while_members_load() -> None:
    driver = started()
    driver.fill(0)
    driver.fill(1)
    driver.ask()
    driver.train()
    driver.ack("p0", "pause")
    driver.on(ev.Offered([("host", 1, "x", None)]), ev.Sent(driver.digest, {}))
    commands = driver.ask()
    assert [c.version for c in of(ev.AnswerBatch, commands)] == [1]
    driver.ack("p0", "loaded")
    assert driver.state.F == 1


def test_a_newcomer_is_given_weights_while_rank_0_waits_and_the_others_work_on() -> None:
    driver = started()
    driver.join("p1")
    driver.ask()
    assert driver.core.round is None
    driver.beats(1, ["p0", "p1"])
    driver.join("p2")
    driver.beats(1, ["p0", "p1", "p2"])
    assert driver.core.round is not None
    assert set(driver.core.round.members) == {"p1", "p2"}
    driver.refit()
    assert (driver.state.F, driver.state.members["p2"].held) == (0, 0)


def test_a_newcomer_that_is_the_only_hope_waits_for_nothing() -> None:
    driver = started()
    driver.status(make_left("p0"))
    driver.ask()
    driver.join("p1")
    assert driver.core.round is not None and set(driver.core.round.members) == {"p1"}
    driver.refit()
    assert {r.producer for r in requests(driver.commands[-10:])} == {"p1"}


def test_a_newcomer_does_not_keep_rank_0_from_a_batch_that_is_there() -> None:
    driver = started()
    driver.join("p1")
    driver.beats(5, ["p0", "p1"])
    driver.fill(0)
    driver.ask()
    assert driver.core.round is None
    assert driver.last(ev.AnswerBatch).version == 0
    driver.train()
    assert driver.core.round is not None and set(driver.core.round.members) == {"p0", "p1"}


def test_who_failed_to_load_has_another_round_and_the_others_go_on() -> None:
    driver = started("p0", "p1", producer_count=2, refit={"max_tries": 3})
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.refit(failing={"p1": "reset by peer"})
    assert (driver.state.F, driver.state.members["p0"].held, driver.state.members["p1"].held) == (1, 1, 0)
    driver.ask()
    driver.beats(2, ["p0", "p1"])
    assert driver.core.round is not None and set(driver.core.round.members) == {"p1"}
    driver.refit()
    assert driver.state.members["p1"].held == 1
    assert driver.core.roster.producers["p1"].failed_rounds == 0


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
    assert driver.state.refused["p1"] == ["refit failed 2 times: second"]
    assert driver.core.stop is None


def test_a_silent_member_ends_the_phase_by_its_deadline_or_its_lease() -> None:
    driver = started("p0", "p1", producer_count=2)
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.ack("p0", "pause")
    driver.beats(7, ["p0", "p1"])
    assert driver.last(ev.AnswerRefit).groups == [{"p0": 1}]
    other = started("p0", "p1", producer_count=2)
    other.fill(0)
    other.ask()
    other.train()
    other.ack("p0", "pause")
    other.beats(5, ["p0"])
    assert other.core.round is not None and other.core.round.waiting_for() == ["p1"]
    other.on(ev.CaughtUp(5))
    assert other.last(ev.AnswerRefit).groups == [{"p0": 1}]


def test_acks_of_an_earlier_round_do_not_end_this_one() -> None:
    driver = started()
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.ack("p0", "pause", round=1, version=0)
    driver.ack("p0", "pause", incarnation=5)
    assert driver.core.round is not None and driver.core.round.waiting_for() == ["p0"]


def test_a_version_is_announced_even_when_nobody_is_there_to_hear_it() -> None:
    driver = started()
    driver.fill(0)
    driver.ask()
    driver.status(make_left("p0"))
    driver.train()
    assert driver.last(ev.AnswerRefit) == ev.AnswerRefit(2, 1, [], [])
    driver.on(ev.Offered([]), ev.Sent("w1", {}))
    assert driver.state.F == 1


def test_acknowledged_weights_are_what_counts_not_what_was_sent() -> None:
    driver = started()
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.ack("p0", "pause")
    driver.on(ev.Offered([("host", 1, "x", None)]), ev.Sent("w1", {}))
    assert driver.state.members["p0"].held == 0
    driver.ack("p0", "loaded", digest="corrupt")
    assert (driver.state.F, driver.state.members["p0"].held) == (1, 0)


# --- the window -----------------------------------------------------------------------------------------------------------------


def test_the_window_is_a_bound_and_lead_is_what_is_used() -> None:
    driver = started(grpo={"max_trajectory_age_steps": 4, "max_num_steps": 100, "num_prompts_per_step": 1})
    assert list(driver.state.window) == [0, 1]
    for _ in range(5):
        driver.fill(driver.version)
        driver.ask()
        driver.train(waited=True)
        driver.refit()
    assert driver.core.lead == 4
    assert set(driver.state.window) <= set(range(5, 10))
    for _ in range(20):
        driver.step()
    assert driver.core.lead == 3


@pytest.mark.parametrize(("max_age", "lead"), [(0, 0), (1, 1), (2, 1), (4, 1)])
def test_lead_starts_at_one_or_below(max_age: int, lead: int) -> None:
    driver = started(grpo={"max_trajectory_age_steps": max_age})
    assert driver.core.lead == lead
    assert list(driver.state.window) == list(range(lead + 1))


def test_synchronous_training_opens_a_version_only_with_its_own_weights() -> None:
    driver = started(grpo={"max_trajectory_age_steps": 0, "max_num_steps": 3})
    driver.fill(0)
    assert driver.state.window == {}
    driver.ask()
    driver.train(waited=True)
    assert driver.state.window == {}
    driver.refit()
    assert list(driver.state.window) == [1]
    assert {r.min_version for r in requests(driver.commands) if r.T == 1} == {1}


def test_topics_are_made_one_version_ahead_and_closed_when_they_were_trained() -> None:
    driver = started(grpo={"max_num_steps": 3})
    assert [c.version for c in driver.all(ev.MakeTopic)] == [0, 1, 2]
    driver.step()
    assert [c.version for c in driver.all(ev.CloseTopic)] == [0]
    driver.step()
    assert [c.version for c in driver.all(ev.MakeTopic)] == [0, 1, 2]


def test_nothing_is_given_out_before_its_topic_is_there() -> None:
    driver = Driver()
    driver.core.topics_asked.update({("rollout", version) for version in range(9)})  # asked for, and not there yet
    driver.start()
    assert (driver.state.window, requests(driver.commands)) == ({}, [])
    driver.on(ev.TopicReady("rollout", 0, "id0"))
    assert (driver.state.window, {r.T for r in requests(driver.commands)}) == ({0: "id0"}, {0})


# --- ends -----------------------------------------------------------------------------------------------------------------------


def test_the_run_ends_with_its_last_step_and_no_version_is_opened_past_it() -> None:
    driver = started(grpo={"max_num_steps": 2, "max_trajectory_age_steps": 4})
    driver.step()
    driver.fill(1)
    driver.ask()
    commands = driver.train()
    assert driver.core.round is None
    assert of(ev.AnswerFinish, commands)
    assert {r.T for r in requests(driver.commands)} == {0, 1}
    commands = driver.on(ev.Finished())
    stop = of(ev.PublishState, commands)[-1].state.stop
    assert stop is not None and (stop.finished, stop.resumable, stop.v) == (True, False, 2)


def test_finish_is_told_once() -> None:
    driver = started(grpo={"max_num_steps": 1})
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.ask()
    assert len(driver.all(ev.AnswerFinish)) == 1


def test_the_data_bound_the_steps_and_the_rest_is_dropped() -> None:
    driver = Driver(grpo={"max_num_epochs": 1, "num_prompts_per_step": 2, "max_num_steps": 100})
    driver.join("p0", dataset=make_dataset(rows=7))
    assert driver.state.last_version == 3


def test_data_below_one_step_end_the_run() -> None:
    driver = Driver(grpo={"max_num_epochs": 1, "num_prompts_per_step": 8})
    driver.join("p0", dataset=make_dataset(rows=7))
    stop = driver.state.stop
    assert stop is not None and not stop.resumable
    assert stop.reason == "the data set has 7 rows, a step needs grpo.num_prompts_per_step=8"


def test_no_producer_for_too_long_ends_the_run_and_names_who_was_refused() -> None:
    driver = Driver(dispatch={"no_producer_timeout_s": 20})
    driver.ready()
    driver.ask()
    driver.join("p0", agreed={"grpo.num_prompts_per_step": 9})
    driver.beats(20)
    assert driver.core.stop is None
    driver.beats(1)
    stop = driver.state.stop
    assert stop is not None and stop.resumable
    assert stop.reason.startswith("no producer for 20 s (dispatch.no_producer_timeout_s), version 0; refused: p0: grpo.num_pro")


def test_the_wait_for_producers_starts_when_rank_0_is_ready() -> None:
    driver = Driver(dispatch={"no_producer_timeout_s": 20})
    driver.beats(100)
    driver.ready()
    driver.ask()
    driver.beats(20)
    assert driver.core.stop is None


def test_no_progress_for_too_long_ends_the_run_and_says_what_is_missing() -> None:
    driver = started(dispatch={"no_progress_timeout_s": 20, "stall_timeout_s": 1000})
    driver.group(key(0, 0))
    driver.ask()
    driver.beats(20, ["p0"])
    assert driver.core.stop is None
    driver.beats(1, ["p0"])
    stop = driver.state.stop
    assert stop is not None and stop.resumable
    assert stop.reason.endswith("1 of 2 groups of version 0 (s0001 at p0)")


def test_a_busy_rank_0_is_no_lack_of_progress() -> None:
    driver = started(dispatch={"no_progress_timeout_s": 20, "stall_timeout_s": 1000})
    driver.fill(0)
    driver.ask()
    driver.beats(200, ["p0"])
    assert driver.core.stop is None
    driver.train()
    assert driver.core.stop is None


@pytest.mark.parametrize("how", ["operator", "rank 0"])
def test_a_stop_is_told_to_everybody_and_nothing_is_issued_any_more(how: str) -> None:
    driver = started()
    commands = driver.status(make_operator()) if how == "operator" else driver.on(ev.StopAsked("interrupted"))
    assert driver.state.stop is not None
    assert driver.state.stop.reason == ("stopped by somebody" if how == "operator" else "interrupted")
    commands += driver.on(ev.StopAsked("a second reason"))
    commands += driver.fail(requests(driver.commands)[0], FailureKind.LOST)
    assert requests(commands) == [] and driver.state.stop.reason != "a second reason"
    assert of(ev.AnswerStop, driver.ask())


# --- validation -----------------------------------------------------------------------------------------------------------------


def validating(**grpo: Any) -> Driver:
    """Version 0 is announced and being validated."""
    return started(grpo={"val_at_start": True, "val_period": 2, "val_timeout_s": 10, **grpo}, validation_rows=2)


def test_validation_takes_exactly_its_versions_weights_and_goes_first() -> None:
    driver = validating()
    sent = [c.request for c in driver.all(ev.SendRequest)]
    validation = [r for r in sent if r.kind == "validation"]
    assert [(r.T, r.slot, r.row, r.min_version) for r in validation] == [(0, 0, 0, 0), (0, 1, 1, 0)]
    assert validation[0].sampling is not None
    assert (validation[0].sampling.n, validation[0].sampling.temperature) == (1, 0.0)
    assert driver.state.validations == {0: "id-validation-0"}
    assert [r.kind for r in requests(driver.commands)][:2] == ["validation", "validation"]


def test_the_next_round_waits_for_the_validation() -> None:
    driver = validating()
    driver.fill(0)
    driver.ask()
    driver.train()
    assert driver.core.round is None
    assert driver.core.waits_for() == "validation of version 0"
    for slot in (0, 1):
        driver.group(key(0, slot), kind="validation", reward=float(slot))
    done = driver.last(ev.ValidationDone)
    assert (done.version, done.rewards, done.lengths, done.missing) == (0, {0: 0.0, 1: 1.0}, {0: 2, 1: 2}, 0)
    assert ev.CloseTopic("validation", 0) in driver.commands
    driver.ask()
    assert driver.core.round is not None and driver.core.round.version == 1


def test_a_validation_that_cannot_finish_is_reported_incomplete_and_blocks_nothing() -> None:
    driver = validating()
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.group(key(0, 1), kind="validation")
    driver.beats(9, ["p0"])
    assert driver.all(ev.ValidationDone) == []
    commands = driver.beats(3, ["p0"])
    assert driver.last(ev.ValidationDone).missing == 1
    assert keys(commands, "cancel") == [("p0", "v00000000/s0000/d0/a0")]
    assert driver.core.round is not None


def test_a_validation_prompt_that_cannot_be_used_is_missing_and_not_asked_for_again() -> None:
    driver = validating()
    bad = next(r for r in requests(driver.commands) if r.kind == "validation")
    assert requests(driver.fail(bad, FailureKind.PROMPT)) == []
    driver.group(key(0, 1), kind="validation")
    assert driver.last(ev.ValidationDone).missing == 1
    assert driver.core.stop is None


def test_validation_is_due_by_period_and_done_once() -> None:
    driver = validating(max_num_steps=5)
    for version in range(4):
        if version in (0, 2):
            for slot in (0, 1):
                driver.group(key(version, slot), kind="validation")
        driver.step()
    driver.join("p1", dataset=make_dataset(validation_rows=2))
    driver.ask()
    driver.beats(3, ["p0", "p1"])
    driver.refit()
    driver.group(key(4, 0), kind="validation")
    driver.group(key(4, 1), kind="validation")
    assert [c.version for c in driver.all(ev.ValidationDone)] == [0, 2, 4]
    assert [c.version for c in driver.all(ev.MakeTopic) if c.kind == "validation"] == [0, 2, 4]


def test_the_last_version_is_refit_only_to_be_validated() -> None:
    driver = started(grpo={"max_num_steps": 1, "val_at_end": True}, validation_rows=1)
    driver.fill(0)
    driver.ask()
    driver.train()
    assert driver.core.round is not None and driver.core.round.version == 1
    driver.refit()
    assert of(ev.AnswerFinish, driver.ask()) == []
    driver.group(key(1, 0), kind="validation")
    assert driver.all(ev.AnswerFinish)


def test_without_rows_to_validate_with_nothing_waits() -> None:
    driver = started(grpo={"val_at_start": True})
    assert driver.core.validation.version is None


# --- another learner goes on ----------------------------------------------------------------------------------------------------


def resumed(version: int, F: int, *members: str, digest: str | None = None, **sections: Any) -> Driver:
    """A learner that goes on at `version` where F was announced; the members of before have not answered yet."""
    state = make_state(*members, F=F, weights_digest=f"w{F}", sealed_through=F - 1, dataset=make_dataset())
    driver = Driver(incarnation=50, version=version, inherited=state, **sections)
    if digest is not None:
        driver.digest = digest
    return driver


def back(driver: Driver, name: str, held: int, *work: Any, partition: int = 0, digest: str | None = None) -> list[ev.Command]:
    return driver.status(
        make_report(
            name,
            incarnation=50,
            held=held,
            digest=digest or f"w{held}",
            state=ProducerState.SERVING,
            requests_partition=partition,
            in_hand=list(work),
        )
    )


def settle(driver: Driver, hearts: list[str]) -> list[ev.Command]:
    """A beat is read and all topics are read past it."""
    commands = driver.beats(1, hearts)
    for read_past in of(ev.ReadPast, commands):
        commands += driver.on(ev.CaughtUp(read_past.beat))
    return commands


def test_sealed_versions_are_trained_again_without_refit_while_producers_work_on() -> None:
    """A learner goes on from 3 where 5 was announced: seals of 3 and 4 lie there, and producers hold 5."""
    driver = resumed(3, 5, "p0")
    for version in (3, 4, 5, 6):
        driver.on(ev.TopicReady("rollout", version, f"id{version}"))
    back(driver, "p0", 5)
    driver.ready()
    driver.on(ev.SealRead(foreign_seal(4), 8), ev.SealRead(foreign_seal(3), 7))
    settle(driver, ["p0"])
    assert list(driver.state.window) == [5, 6]
    assert {r.T for r in requests(driver.commands)} == {5, 6}
    driver.ask()
    for version in (3, 4):
        assert driver.last(ev.AnswerBatch) == ev.AnswerBatch(version, foreign_seal(version), 4 + version, catch_up=True)
        assert driver.core.round is None
        assert driver.state.F == 5
        driver.train()
    assert driver.all(ev.AnswerRefit) == [] and driver.core.round is None
    driver.fill(5)
    driver.ask()
    assert not driver.last(ev.AnswerBatch).catch_up


@pytest.mark.parametrize(("digest", "refit"), [("w5", False), ("w5 on another machine", True)])
def test_at_f_the_weights_are_compared_and_everybody_is_refit_if_they_differ(digest: str, refit: bool) -> None:
    driver = resumed(4, 5, "p0")
    driver.on(ev.TopicReady("rollout", 4, "id4"))
    back(driver, "p0", 5)
    driver.ready()
    driver.on(ev.SealRead(foreign_seal(4), 8))
    settle(driver, ["p0"])
    driver.ask()
    driver.train(digest=digest)
    assert (driver.core.round is not None) is refit
    if refit:
        driver.refit()
        assert (driver.state.F, driver.state.members["p0"].digest) == (5, digest)


def test_a_learner_that_starts_at_f_with_other_weights_refits_everybody() -> None:
    driver = resumed(5, 5, "p0", digest="other")
    back(driver, "p0", 5)
    driver.ready()
    settle(driver, ["p0"])
    driver.ask()
    assert driver.core.round is not None and set(driver.core.round.members) == {"p0"}


def test_f_never_falls() -> None:
    driver = resumed(3, 5)
    driver.ready()
    driver.beats(3)
    assert driver.state.F == 5


def test_work_in_hand_is_adopted_and_nothing_of_it_is_issued_again() -> None:
    driver = resumed(5, 5, "p0", "p1")
    for version in (5, 6):
        driver.on(ev.TopicReady("rollout", version, f"id{version}"))
    driver.ready()
    driver.ask()
    back(driver, "p0", 5, in_hand(key(5, 0)), in_hand(key(6, 1, 0, 2)))
    assert requests(driver.commands) == []
    back(driver, "p1", 5, in_hand(key(5, 1)), partition=1)
    assert requests(driver.commands) == []
    settle(driver, ["p0", "p1"])
    assert [(r.T, r.slot) for r in requests(driver.commands)] == [(6, 0)]
    assert driver.core.table.open_versions["rollout", 6].slots[1].next_key.attempt == 3


def test_nothing_is_issued_before_all_is_read_that_was_published() -> None:
    driver = resumed(5, 5, "p0")
    driver.on(ev.TopicReady("rollout", 5, "id5"))
    driver.ready()
    back(driver, "p0", 5)
    driver.ask()
    assert requests(driver.commands) == []
    commands = driver.beats(1, ["p0"])
    assert of(ev.ReadPast, commands)
    driver.group(key(5, 0))
    driver.on(ev.CaughtUp(1))
    assert [(r.T, r.slot) for r in requests(driver.commands) if r.T == 5] == [(5, 1)]


def test_members_that_never_answer_are_waited_for_as_long_as_a_lease() -> None:
    driver = resumed(5, 5, "p0", "dead")
    driver.on(ev.TopicReady("rollout", 5, "id5"))
    driver.ready()
    driver.ask()
    back(driver, "p0", 5)
    for _ in range(4):
        settle(driver, ["p0"])
        assert requests(driver.commands) == []
    settle(driver, ["p0"])
    assert {r.producer for r in requests(driver.commands)} == {"p0"}


def test_a_member_that_leaves_instead_of_answering_is_not_waited_for() -> None:
    driver = resumed(5, 5, "p0", "p1")
    driver.on(ev.TopicReady("rollout", 5, "id5"))
    driver.ready()
    back(driver, "p0", 5)
    driver.status(make_left("p1"))
    settle(driver, ["p0"])
    assert requests(driver.commands)


def test_what_nobody_needs_any_more_is_cancelled() -> None:
    driver = resumed(5, 5, "p0")
    driver.on(ev.TopicReady("rollout", 5, "id5"))
    commands = back(driver, "p0", 5, in_hand(key(4, 0)), in_hand(key(5, 1), "validation"), in_hand(key(5, 1)))
    cancels = {(r.cancels, str(r.key)) for r in requests(commands, "cancel")}
    assert cancels == {("rollout", "v00000004/s0000/d0/a0"), ("validation", "v00000005/s0001/d0/a0")}


def test_weights_that_were_loaded_but_never_announced_do_no_harm() -> None:
    """The old learner died when a producer had loaded 6 and nobody had been told of it: seal 5 lies there, 5 is trained again."""
    driver = resumed(5, 5, "p0")
    for version in (5, 6):
        driver.on(ev.TopicReady("rollout", version, f"id{version}"))
    driver.on(ev.SealRead(foreign_seal(5), 8))
    driver.ready()
    back(driver, "p0", 6)
    settle(driver, ["p0"])
    driver.ask()
    assert {r.T for r in requests(driver.commands)} == {6}
    driver.train()
    assert driver.core.round is not None
    driver.refit()
    assert driver.state.F == 6
