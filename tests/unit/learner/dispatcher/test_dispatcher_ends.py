"""How the dispatcher ends a run, validates versions, and goes on with the run of an earlier learner."""

from __future__ import annotations

from typing import Any

import pytest

from learner.dispatcher.deciding import commands as cmd
from learner.dispatcher.deciding import events as ev
from learner.dispatcher.deciding.reporting import waits_for
from learner.link import messages
from schemas.records.status import FailureKind, ProducerState
from tests.fakes.dispatcher.driver import Driver, StateWritten, foreign_seal, keys, of, requests, started
from tests.fakes.records.make import in_hand, key, make_dataset, make_left, make_operator, make_report, make_state

# --- ends -----------------------------------------------------------------------------------------------------------------------


def test_the_run_ends_with_its_last_step_and_no_version_is_opened_past_it() -> None:
    driver = started(grpo={"max_num_steps": 2, "max_trajectory_age_steps": 4})
    driver.step()
    driver.fill(1)
    driver.ask()
    commands = driver.train()
    assert driver.core.state.round is None
    assert of(messages.FinishRun, commands)
    assert {r.target for r in requests(driver.commands)} == {0, 1}
    commands = driver.on(messages.RunFinished())
    stop = of(StateWritten, commands)[-1].state.stop
    assert stop is not None and (stop.finished, stop.resumable, stop.version) == (True, False, 2)


def test_finish_is_told_once() -> None:
    driver = started(grpo={"max_num_steps": 1})
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.ask()
    assert len(driver.all(messages.FinishRun)) == 1


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
    assert driver.core.state.stop is None
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
    assert driver.core.state.stop is None


def test_no_progress_for_too_long_ends_the_run_and_says_what_is_missing() -> None:
    driver = started(dispatch={"no_progress_timeout_s": 20, "stall_timeout_s": 1000})
    driver.group(key(0, 0))
    driver.ask()
    driver.beats(20, ["p0"])
    assert driver.core.state.stop is None
    driver.beats(1, ["p0"])
    stop = driver.state.stop
    assert stop is not None and stop.resumable
    assert stop.reason.endswith("1 of 2 groups of version 0 (s0001 at p0)")


def test_a_busy_rank_0_is_no_lack_of_progress() -> None:
    driver = started(dispatch={"no_progress_timeout_s": 20, "stall_timeout_s": 1000})
    driver.fill(0)
    driver.ask()
    driver.beats(200, ["p0"])
    assert driver.core.state.stop is None
    driver.train()
    assert driver.core.state.stop is None


@pytest.mark.parametrize("how", ["operator", "rank 0"])
def test_a_stop_is_told_to_everybody_and_nothing_is_issued_any_more(how: str) -> None:
    driver = started()
    commands = driver.status(make_operator()) if how == "operator" else driver.on(messages.StopRequest("interrupted"))
    assert driver.state.stop is not None
    assert driver.state.stop.reason == ("stopped by somebody" if how == "operator" else "interrupted")
    assert driver.state.stop.ordered
    commands += driver.on(messages.StopRequest("a second reason"))
    commands += driver.fail(requests(driver.commands)[0], FailureKind.LOST)
    assert requests(commands) == [] and driver.state.stop.reason != "a second reason"
    assert of(messages.EndRun, driver.ask())


# --- validation -----------------------------------------------------------------------------------------------------------------


def validating(**grpo: Any) -> Driver:
    """Version 0 is announced and being validated."""
    return started(grpo={"val_at_start": True, "val_period": 2, "val_timeout_s": 10, **grpo}, validation_rows=2)


def test_validation_takes_exactly_its_versions_weights_and_goes_first() -> None:
    driver = validating()
    sent = [c.request for c in driver.all(cmd.SendRequest)]
    validation = [r for r in sent if r.kind == "validation"]
    assert [(r.target, r.slot, r.row, r.min_version) for r in validation] == [(0, 0, 0, 0), (0, 1, 1, 0)]
    assert validation[0].sampling is not None
    assert (validation[0].sampling.n, validation[0].sampling.temperature) == (1, 0.0)
    assert driver.state.validations == {0: "id-validation-0"}
    assert [r.kind for r in requests(driver.commands)][:2] == ["validation", "validation"]


def test_the_next_round_waits_for_the_validation() -> None:
    driver = validating()
    driver.fill(0)
    driver.ask()
    driver.train()
    assert driver.core.state.round is None
    assert waits_for(driver.core.state) == "validation of version 0"
    for slot in (0, 1):
        driver.group(key(0, slot), kind="validation", reward=float(slot))
    done = driver.last(cmd.ValidationDone)
    assert (done.version, done.rewards, done.lengths, done.missing) == (0, {0: 0.0, 1: 1.0}, {0: 2, 1: 2}, 0)
    assert cmd.CloseTopic("validation", 0) in driver.commands
    driver.ask()
    assert driver.core.state.round is not None and driver.core.state.round.version == 1


def test_a_validation_that_cannot_finish_is_reported_incomplete_and_blocks_nothing() -> None:
    driver = validating()
    driver.fill(0)
    driver.ask()
    driver.train()
    driver.group(key(0, 1), kind="validation")
    driver.beats(9, ["p0"])
    assert driver.all(cmd.ValidationDone) == []
    commands = driver.beats(3, ["p0"])
    assert driver.last(cmd.ValidationDone).missing == 1
    assert keys(commands, "cancel") == [("p0", "v00000000/s0000/d0/a0")]
    assert driver.core.state.round is not None


def test_a_validation_prompt_that_cannot_be_used_is_missing_and_not_asked_for_again() -> None:
    driver = validating()
    bad = next(r for r in requests(driver.commands) if r.kind == "validation")
    assert requests(driver.fail(bad, FailureKind.PROMPT), "validation") == []
    driver.group(key(0, 1), kind="validation")
    assert driver.last(cmd.ValidationDone).missing == 1
    assert driver.core.state.stop is None


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
    assert [c.version for c in driver.all(cmd.ValidationDone)] == [0, 2, 4]
    assert [c.version for c in driver.all(cmd.MakeTopic) if c.kind == "validation"] == [0, 2, 4]


def test_the_last_version_is_refit_only_to_be_validated() -> None:
    driver = started(grpo={"max_num_steps": 1, "val_at_end": True}, validation_rows=1)
    driver.fill(0)
    driver.ask()
    driver.train()
    assert driver.core.state.round is not None and driver.core.state.round.version == 1
    driver.refit()
    assert of(messages.FinishRun, driver.ask()) == []
    driver.group(key(1, 0), kind="validation")
    assert driver.all(messages.FinishRun)


def test_without_rows_to_validate_with_nothing_waits() -> None:
    driver = started(grpo={"val_at_start": True})
    assert driver.core.state.validation.version is None


# --- another learner goes on ----------------------------------------------------------------------------------------------------


def resumed(version: int, F: int, *members: str, digest: str | None = None, **sections: Any) -> Driver:
    """A learner that goes on at `version` where F was announced; the members of before have not answered yet."""
    state = make_state(*members, frontier=F, weights_digest=f"w{F}", sealed_through=F - 1, dataset=make_dataset())
    driver = Driver(incarnation=50, version=version, inherited=state, **sections)
    if digest is not None:
        driver.digest = digest
    return driver


def back(driver: Driver, name: str, held: int, *work: Any, partition: int = 0, digest: str | None = None) -> list[cmd.Command]:
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


def settle(driver: Driver, hearts: list[str]) -> list[cmd.Command]:
    """A beat is read and all topics are read past it."""
    commands = driver.beats(1, hearts)
    for read_past in of(cmd.ReadPast, commands):
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
    assert {r.target for r in requests(driver.commands)} == {5, 6}
    driver.ask()
    for version in (3, 4):
        assert driver.last(cmd.HandOverBatch) == cmd.HandOverBatch(version, foreign_seal(version), 4 + version, catch_up=True)
        assert driver.core.state.round is None
        assert driver.state.frontier == 5
        driver.train()
    assert driver.all(messages.StartRefit) == [] and driver.core.state.round is None
    driver.fill(5)
    driver.ask()
    assert not driver.last(cmd.HandOverBatch).catch_up


def test_before_f_no_weights_move_even_while_rank_0_waits_for_a_seal() -> None:
    driver = resumed(3, 5, "p0")
    driver.on(ev.TopicReady("rollout", 3, "id3"))
    driver.ready()
    back(driver, "p0", 5)
    settle(driver, ["p0"])
    driver.join("p1")
    driver.ask()
    driver.beats(5, ["p0", "p1"])
    assert driver.core.state.round is None and driver.all(messages.StartRefit) == []
    assert waits_for(driver.core.state).startswith("2 of 2 groups of version 3")


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
    assert (driver.core.state.round is not None) is refit
    if refit:
        driver.refit()
        assert (driver.state.frontier, driver.state.members["p0"].digest) == (5, digest)


def test_a_learner_that_starts_at_f_with_other_weights_refits_everybody() -> None:
    driver = resumed(5, 5, "p0", digest="other")
    back(driver, "p0", 5)
    driver.ready()
    settle(driver, ["p0"])
    driver.ask()
    assert driver.core.state.round is not None and set(driver.core.state.round.members) == {"p0"}


def test_f_never_falls() -> None:
    driver = resumed(3, 5)
    driver.ready()
    driver.beats(3)
    assert driver.state.frontier == 5


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
    assert [(r.target, r.slot) for r in requests(driver.commands)] == [(6, 0)]
    assert driver.core.state.slots.open_versions["rollout", 6].slots[1].next_key.attempt == 3


def test_nothing_is_issued_before_all_is_read_that_was_published() -> None:
    driver = resumed(5, 5, "p0")
    driver.on(ev.TopicReady("rollout", 5, "id5"))
    driver.ready()
    back(driver, "p0", 5)
    driver.ask()
    assert requests(driver.commands) == []
    commands = driver.beats(1, ["p0"])
    assert of(cmd.ReadPast, commands)
    driver.group(key(5, 0))
    driver.on(ev.CaughtUp(1))
    assert [(r.target, r.slot) for r in requests(driver.commands) if r.target == 5] == [(5, 1)]


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
    assert {r.target for r in requests(driver.commands)} == {6}
    driver.train()
    assert driver.core.state.round is not None
    driver.refit()
    assert driver.state.frontier == 6
