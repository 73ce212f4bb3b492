"""The dispatcher's decisions: events in, commands out. `Driver` asserts its invariants after each event."""

from __future__ import annotations

import pytest

from learner.dispatcher.deciding import commands as cmd
from learner.dispatcher.deciding import events as ev
from learner.dispatcher.deciding.reporting import waits_for
from learner.link import messages
from schemas.draws import row_of
from schemas.errors import ProtocolError
from schemas.records.status import FailureKind
from tests.fakes.dispatcher.driver import Driver, StateWritten, foreign_seal, keys, make_group_read, of, requests, started
from tests.fakes.records.make import UUID, key, make_failed, make_left

# --- the first round ------------------------------------------------------------------------------------------------------------


def test_the_first_state_says_that_nothing_was_announced() -> None:
    state = Driver().state
    assert (state.frontier, state.window, state.members, state.round, state.stop) == (None, {}, {}, None, None)


def test_the_first_round_waits_for_the_producers_that_were_ordered() -> None:
    driver = Driver(producer_count=2)
    driver.ready()
    driver.join("p0")
    assert driver.ask() == []
    assert waits_for(driver.core.state) == "2 producers, 1 joined"
    commands = driver.join("p1")
    assert driver.core.state.round is not None and set(driver.core.state.round.members) == {"p0", "p1"}
    record = of(StateWritten, commands)[-1].state.round
    assert record is not None and (record.phase, record.members, record.version) == ("pause", ["p0", "p1"], 0)


def test_the_first_round_goes_on_without_those_who_do_not_come() -> None:
    driver = Driver(producer_count=2, dispatch={"start_timeout_s": 10})
    driver.ready()
    driver.join("p0")
    driver.ask()
    driver.beats(10, ["p0"])
    assert driver.core.state.round is None
    driver.beats(1, ["p0"])
    assert driver.core.state.round is not None


def test_the_first_round_waits_for_rank_0_and_never_starts_with_nobody() -> None:
    driver = Driver(dispatch={"start_timeout_s": 10})
    driver.join("p0")
    driver.beats(3, ["p0"])
    assert driver.core.state.round is None
    alone = Driver(dispatch={"start_timeout_s": 10})
    alone.ready()
    alone.ask()
    alone.beats(50)
    assert alone.core.state.round is None


def test_the_first_round_announces_and_opens_the_window() -> None:
    driver = Driver()
    driver.ready()
    driver.join("p0")
    driver.ask()
    commands = driver.refit()
    state = driver.state
    assert (state.frontier, state.weights_digest, state.round) == (0, "w0", None)
    assert (state.members["p0"].held, state.members["p0"].digest) == (0, "w0")
    assert state.window == {0: "id-rollout-0", 1: "id-rollout-1"}
    assert keys(commands)[:2] == [("p0", "v00000000/s0000/d0/a0"), ("p0", "v00000000/s0001/d0/a0")]


def test_states_are_published_before_what_they_announce() -> None:
    driver = Driver()
    driver.ready()
    driver.join("p0")
    driver.ask()
    for command in driver.refit():
        if isinstance(command, cmd.SendRequest):
            pytest.fail("a request came before the state that opens its version")
        if isinstance(command, StateWritten) and command.state.window:
            break


def test_rank_0_must_send_what_the_dispatcher_planned() -> None:
    with pytest.raises(ProtocolError, match="plan"):
        Driver().on(messages.LearnerReady(0, "another", "w0"))


# --- requests -------------------------------------------------------------------------------------------------------------------


def test_a_request_says_all_that_a_producer_must_know() -> None:
    driver = started(grpo={"max_trajectory_age_steps": 2})
    request = requests(driver.commands)[0]
    assert (request.uuid, request.kind, request.producer, request.incarnation) == (UUID, "rollout", "p0", 0)
    assert (request.target, request.slot, request.draw, request.attempt, request.min_version) == (0, 0, 0, 0, 0)
    assert request.row == row_of(3, 64, 2, 0, 0, 0)
    assert request.sampling is not None and (request.sampling.n, request.sampling.max_new_tokens) == (2, 5)
    later = [r for r in requests(driver.commands) if r.target == 1]
    assert [r.min_version for r in later] == [0, 0]


def test_lowest_versions_first_and_no_more_than_a_producer_can_take() -> None:
    driver = Driver(grpo={"num_prompts_per_step": 3})
    driver.ready()
    driver.join("p0", capacity=4)
    driver.ask()
    commands = driver.refit()
    assert [(r.target, r.slot) for r in requests(commands)] == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_a_short_step_may_exceed_the_capacity_by_one() -> None:
    """All room is taken by the next version when a slot of the present one comes back."""
    driver = Driver(grpo={"num_prompts_per_step": 2})
    driver.ready()
    driver.join("p0", capacity=3)
    driver.ask()
    first = requests(driver.refit())[0]
    assert keys(driver.fail(first, FailureKind.LOST)) == [("p0", "v00000000/s0000/d0/a1")]
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
        assert driver.state.frontier == 1
        assert any(r.producer == "p1" and r.target >= 1 for r in requests(driver.commands)) is expected
        assert all(r.target - max_age <= (1 if r.producer == "p0" else 0) for r in requests(commands))


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
    assert driver.all(cmd.WriteSeal) == []
    driver.on(make_group_read(key(0, 0), offset=9))
    seal = driver.last(cmd.WriteSeal).seal
    assert (seal.run, seal.incarnation, seal.version, list(seal.slots)) == (UUID, 0, 0, [0, 1])
    assert (seal.slots[0].offset, seal.slots[1].offset, seal.slots[0].sha256) == (9, 7, f"sha-{key(0, 0)}")


def test_versions_are_sealed_in_order() -> None:
    driver = started()
    for slot in (0, 1):
        driver.group(key(1, slot))
    assert driver.all(cmd.WriteSeal) == []
    for slot in (0, 1):
        driver.group(key(0, slot))
    assert [c.seal.version for c in driver.all(cmd.WriteSeal)] == [0]
    driver.read_seal(0)
    assert [c.seal.version for c in driver.all(cmd.WriteSeal)] == [0, 1]


def test_the_first_seal_in_the_log_is_the_batch_whoever_wrote_it() -> None:
    driver = started()
    for slot in (0, 1):
        driver.group(key(0, slot))
    own = driver.last(cmd.WriteSeal).seal
    other = foreign_seal(0)
    driver.on(ev.SealRead(other, 5))
    driver.on(ev.SealRead(own, 6))
    driver.ask()
    batch = driver.last(cmd.HandOverBatch)
    assert (batch.seal, batch.seal_offset) == (other, 5)


def test_a_seal_that_lies_there_ends_the_work_on_its_version() -> None:
    driver = started()
    commands = driver.on(ev.SealRead(foreign_seal(0), 5))
    assert keys(commands, "cancel") == [("p0", "v00000000/s0000/d0/a0"), ("p0", "v00000000/s0001/d0/a0")]
    assert (driver.state.sealed_through, list(driver.state.window)) == (0, [1])
    assert driver.all(cmd.WriteSeal) == []


def test_a_higher_seal_may_be_read_before_a_lower_one() -> None:
    driver = started()
    driver.on(ev.SealRead(foreign_seal(1), 5))
    assert (driver.state.sealed_through, driver.state.window) == (1, {})
    driver.on(ev.SealRead(foreign_seal(0), 5))
    driver.ask()
    assert driver.last(cmd.HandOverBatch).version == 0


def test_late_and_doubled_groups_are_counted_and_left() -> None:
    driver = started()
    driver.group(key(0, 0))
    driver.group(key(0, 0))
    assert (driver.core.state.counters.duplicates, driver.core.state.counters.late) == (1, 0)
    driver.group(key(0, 1))
    driver.read_seal(0)
    commands = driver.group(key(0, 1))
    assert (commands, driver.core.state.counters.late) == ([], 1)
    counted = {name: count for name, count in driver.core.state.counters.as_metrics().items() if count}
    assert counted == {"dispatch/duplicates": 1, "dispatch/late": 1}


def test_the_loser_of_a_slot_is_cancelled() -> None:
    """A producer was taken for lost, its slot was given to another, and then its group comes after all."""
    driver = started("p0", "p1", producer_count=2)
    first = next(r for r in requests(driver.commands) if r.producer == "p0")
    driver.status(make_left("p0"))
    again = next(r for r in requests(driver.commands) if r.producer == "p1" and r.slot == first.slot and r.target == first.target)
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
    assert driver.core.state.counters.refusals == {"age": 1}
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
    assert driver.core.state.counters.failures == {"rollout": 3}


def test_what_is_handed_back_is_issued_again_as_often_as_it_comes() -> None:
    driver = started()
    request = requests(driver.commands)[0]
    for attempt in range(1, 12):
        request = requests(driver.fail(request, FailureKind.LOST))[0]
        assert (request.draw, request.attempt) == (0, attempt)
    assert driver.core.state.stop is None


def test_a_draw_that_takes_its_producers_with_it_is_given_up_after_max_lost() -> None:
    driver = Driver(grpo={"num_prompts_per_step": 1}, dispatch={"max_lost": 2})
    driver.start("p0")
    for name in ("p1", "p2"):
        driver.status(make_left(driver.last(cmd.SendRequest).request.producer))
        driver.join(name)
        driver.ask()
        driver.refit()
    draws = [r.draw for r in requests(driver.commands) if r.target == 0]
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
        assert driver.core.state.stop is None
        found = requests(driver.fail(request, FailureKind.PROMPT, "the judge is down" if turn else "too long"))
        request = found[0] if found else request
    stop = driver.state.stop
    assert stop is not None and stop.resumable
    assert stop.reason == "5 of the last 5 draws failed, 4 with: the judge is down"
    driver.ask()
    assert driver.last(messages.EndRun) == messages.EndRun(stop.reason, finished=False, ordered=False)


def test_half_of_the_draws_may_fail() -> None:
    driver = started(grpo={"num_prompts_per_step": 1, "max_num_steps": 100})
    for version in range(20):
        request = requests(driver.commands)[-1]
        while request.target != version:
            request = next(r for r in reversed(requests(driver.commands)) if r.target == version)
        driver.fail(request, FailureKind.PROMPT)
        driver.step()
    assert driver.core.state.stop is None


def test_a_long_rollout_is_left_alone_and_one_that_stands_still_is_given_to_another() -> None:
    driver = started("p0", "p1", producer_count=2, grpo={"num_prompts_per_step": 1}, dispatch={"stall_timeout_s": 12})
    first = next(r for r in requests(driver.commands) if r.producer == "p0")
    assert requests(driver.beats(100, ["p0", "p1"])) == []
    commands = []
    for _ in range(12):
        driver.heartbeat("p0", grown=False)
        commands += driver.beats(1, ["p1"])
    assert ("p0", str(first.key)) in keys(commands, "cancel")
    assert [r.producer for r in requests(commands) if r.target == first.target and r.slot == first.slot] == ["p1"]
    assert driver.core.state.counters.failures["rollout"] >= 1


# --- the window -----------------------------------------------------------------------------------------------------------------


def test_the_window_is_a_bound_and_lead_is_what_is_used() -> None:
    driver = started(grpo={"max_trajectory_age_steps": 4, "max_num_steps": 100, "num_prompts_per_step": 1})
    assert list(driver.state.window) == [0, 1]
    for _ in range(5):
        driver.fill(driver.version)
        driver.ask()
        driver.train(waited=True)
        driver.refit()
    assert driver.core.state.lead.value == 4
    assert set(driver.state.window) <= set(range(5, 10))
    for _ in range(20):
        driver.step()
    assert driver.core.state.lead.value == 3


@pytest.mark.parametrize(("max_age", "lead"), [(0, 0), (1, 1), (2, 1), (4, 1)])
def test_lead_starts_at_one_or_below(max_age: int, lead: int) -> None:
    driver = started(grpo={"max_trajectory_age_steps": max_age})
    assert driver.core.state.lead.value == lead
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
    assert {r.min_version for r in requests(driver.commands) if r.target == 1} == {1}


def test_topics_are_made_one_version_ahead_and_closed_when_they_were_trained() -> None:
    driver = started(grpo={"max_num_steps": 3})
    assert [c.version for c in driver.all(cmd.MakeTopic)] == [0, 1, 2]
    driver.step()
    assert [c.version for c in driver.all(cmd.CloseTopic)] == [0]
    driver.step()
    assert [c.version for c in driver.all(cmd.MakeTopic)] == [0, 1, 2]


def test_nothing_is_given_out_before_its_topic_is_there() -> None:
    driver = Driver()
    driver.core.state.topics.making.update({("rollout", version) for version in range(9)})  # asked for, and not there yet
    driver.start()
    assert (driver.state.window, requests(driver.commands)) == ({}, [])
    driver.on(ev.TopicReady("rollout", 0, "id0"))
    assert (driver.state.window, {r.target for r in requests(driver.commands)}) == ({0: "id0"}, {0})
