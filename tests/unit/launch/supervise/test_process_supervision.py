from __future__ import annotations

import pytest

from launch.exit_codes import FAILED, FINISHED, INTERRUPTED
from launch.outcome import RunOutcome
from launch.supervise.events import (
    Interrupted,
    Joined,
    Restart,
    RunClaimed,
    StopSeen,
    Terminate,
    VersionsTrained,
)
from launch.supervise.states import END_S, READ_S, SupervisionState
from tests.fakes.launch.supervision_story import ALL, LEARNER, PRODUCERS, START_S, STOP_S, TAKEN_OVER, Story, outcome, underway


@pytest.mark.parametrize("code", [1, 137])
def test_a_producer_that_had_joined_is_started_again_after_a_pause(code: int) -> None:
    story = underway(backoff_s=2)
    assert story.end("producer-0", code=code) == []
    assert story.after(1.9) == []
    assert story.after(0.1) == [Restart("producer-0")]
    assert story.after(1) == []
    assert story.core.restarts == {"producer-0": 1}
    word = "signal SIGKILL" if code == 137 else "exit code 1"
    assert story.lines == [f"producer-0 died ({word}); it will be started again in 2 s (restart 1)"]


def test_pauses_double_up_to_the_longest_and_start_over_when_a_producer_did_well() -> None:
    story = underway(backoff_s=1, max_backoff_s=3, window_s=100)
    pauses = []
    for lived in (1, 1, 1, 200):
        story.now += lived
        story.end("producer-0", code=1)
        waited = 0.0
        while not story.after(0.5):
            waited += 0.5
        pauses.append(waited + 0.5)
    assert pauses == [1, 2, 3, 1]


def test_a_producer_that_dies_too_often_ends_the_run_with_its_last_cause() -> None:
    story = underway(max_producer_restarts=2, backoff_s=1, window_s=100)
    for code in (1, 137):
        assert story.end("producer-1", code=code) == []
        assert story.after(10) == [Restart("producer-1")]
    assert story.end("producer-1", code=139) == [Terminate(LEARNER)]
    story.end(LEARNER, code=1)
    ended = outcome(story.end("producer-0"))
    assert (ended.code, ended.blame) == (FAILED, "producer-1")
    assert "SIGSEGV" in ended.cause and "2 restarts in 100 s (launch.restart.max_producer_restarts)" in ended.cause


def test_a_restarted_producer_that_says_wrong_input_ends_the_run() -> None:
    story = underway()
    story.end("producer-0", code=137)
    assert story.after(1) == [Restart("producer-0")]
    assert story.end("producer-0", code=2) == [Terminate(LEARNER)]


def test_a_learner_that_had_joined_is_started_again_and_the_producers_are_left_alone() -> None:
    story = underway()
    assert story.end(LEARNER, code=137) == []
    assert story.core.learner_away
    assert story.after(1) == [Restart(LEARNER)]
    assert story.core.learner_away
    story.on(RunClaimed())
    assert not story.core.learner_away
    assert story.after(10 * START_S) == []
    story.on(StopSeen("all 40 steps are trained", finished=True))
    story.end(LEARNER, *PRODUCERS)
    assert story.core.outcome == RunOutcome(FINISHED, "all 40 steps are trained")


@pytest.mark.parametrize("joined", [(), ("producer-0", "producer-1")])
def test_a_learner_without_a_checkpoint_is_not_started_again(joined: tuple[str, ...]) -> None:
    story = Story()
    story.on(RunClaimed())
    for name in joined:
        story.on(Joined(name))
    assert story.end(LEARNER, code=137) == [Terminate("producer-0"), Terminate("producer-1")]


def test_a_learner_that_makes_no_progress_ends_the_run_and_progress_starts_the_count_over() -> None:
    story = underway(max_restarts=2, backoff_s=1)
    for steps in (3, 3, 4, 4):
        story.on(VersionsTrained(steps))
        assert story.end(LEARNER, code=1) == []
        assert story.after(30) == [Restart(LEARNER)]
        story.on(RunClaimed())
    assert story.core.restarts[LEARNER] == 4
    assert story.end(LEARNER, code=137) == [Terminate("producer-0"), Terminate("producer-1")]
    story.end("producer-0")
    ended = outcome(story.end("producer-1"))
    assert (ended.code, ended.blame) == (FAILED, LEARNER)
    assert "SIGKILL" in ended.cause
    assert "after 2 restarts without a further version (launch.restart.max_restarts), at version 4" in ended.cause


def test_a_restarted_learner_must_claim_the_run_in_time() -> None:
    story = underway()
    story.now += 5 * START_S
    story.end(LEARNER, code=1)
    assert story.after(1) == [Restart(LEARNER)]
    assert story.after(START_S - 1) == []
    assert story.after(1) == [Terminate(LEARNER)]


def test_a_learner_that_lost_the_run_to_another_does_not_take_it_back() -> None:
    story = underway()
    story.end(LEARNER, code=1)
    story.after(1)
    story.on(RunClaimed())
    story.on(RunClaimed())
    assert story.end(LEARNER, code=1) == [Terminate("producer-0"), Terminate("producer-1")]
    assert story.core.outcome == TAKEN_OVER


def test_a_life_that_died_before_its_claim_makes_no_room_for_a_foreign_one() -> None:
    story = underway()
    for code, claims in ((137, 0), (1, 0), (1, 2)):
        assert story.end(LEARNER, code=code) == []
        assert story.after(30) == [Restart(LEARNER)]
        for _ in range(claims):
            story.on(RunClaimed())
    assert story.end(LEARNER, code=1) == [Terminate("producer-0"), Terminate("producer-1")]
    assert story.core.outcome == TAKEN_OVER


def test_a_foreign_claim_that_is_read_in_the_pause_before_a_start_ends_the_run() -> None:
    story = underway()
    assert story.end(LEARNER, code=1) == []
    assert story.on(RunClaimed()) == [Terminate("producer-0"), Terminate("producer-1")]
    assert story.after(1) == []
    assert story.core.outcome == TAKEN_OVER


def test_the_claim_of_a_learner_that_died_right_after_it_is_its_own() -> None:
    story = underway()
    story.end(LEARNER, code=137)
    story.after(1)
    story.end(LEARNER, code=137)
    assert story.on(RunClaimed()) == []
    assert story.after(2) == [Restart(LEARNER)]


def test_a_learner_that_stopped_by_itself_is_not_started_again() -> None:
    story = underway()
    story.on(StopSeen("no producer for 300 s", finished=False))
    story.end(LEARNER, code=1)
    story.end("producer-0", code=1)
    assert "no producer for 300 s" in outcome(story.end("producer-1", code=1)).cause
    assert not story.core.restarts


def test_a_stop_that_is_seen_after_its_learner_died_is_still_the_cause() -> None:
    story = underway()
    assert story.end(LEARNER, code=1) == []
    assert story.on(StopSeen("no producer for 300 s", finished=False)) == []
    story.end("producer-0", code=1)
    assert "no producer for 300 s" in outcome(story.end("producer-1", code=1)).cause


@pytest.mark.parametrize("limit", [0, 1])
def test_an_ordered_stop_that_is_read_after_its_learner_ended_is_no_failure_though_nothing_is_started_again(limit: int) -> None:
    story = underway(max_restarts=limit)
    for _ in range(limit):
        story.end(LEARNER, code=137)
        story.after(1)
        story.on(RunClaimed())
    assert story.end(LEARNER, code=1) == []
    assert story.end("producer-0") == []
    story.now += READ_S - 0.1
    assert story.on(StopSeen("stopped by a@b", finished=False, ordered=True)) == []
    assert outcome(story.end("producer-1")) == RunOutcome(INTERRUPTED, "stopped by a@b")


def test_a_learner_that_ended_with_code_1_and_no_stop_has_failed_after_a_moment() -> None:
    story = underway(max_restarts=0)
    assert story.end(LEARNER, code=1) == []
    assert story.end("producer-0", code=1) == []
    assert story.after(READ_S - 0.1) == []
    assert story.after(0.1) == [Terminate("producer-1")]
    ended = outcome(story.end("producer-1"))
    assert (ended.code, ended.blame) == (FAILED, LEARNER)


def test_who_does_not_wait_for_an_explanation_need_not() -> None:
    story = underway(max_restarts=0)
    story.end(LEARNER, code=1)
    assert story.on(Interrupted("SIGINT")) == [Terminate("producer-0"), Terminate("producer-1")]
    story.end("producer-0")
    ended = outcome(story.end("producer-1"))
    assert (ended.code, ended.blame) == (FAILED, LEARNER)


def test_the_stop_of_a_learner_that_died_is_void_once_the_next_one_runs() -> None:
    story = underway()
    story.end(LEARNER, code=1)
    assert story.after(1) == [Restart(LEARNER)]
    story.on(StopSeen("the broker was away", finished=False))
    story.on(RunClaimed())
    assert story.core.state is SupervisionState.RUNNING
    assert story.after(2 * END_S) == []


def test_nothing_is_started_when_the_run_ends_during_the_pause() -> None:
    story = underway()
    story.end("producer-0", code=1)
    story.on(StopSeen("all 40 steps are trained", finished=True))
    assert story.after(60) == []
    story.end(LEARNER)
    assert outcome(story.end("producer-1")).code == FINISHED


@pytest.mark.parametrize("victims", [(LEARNER,), ("producer-0",), ALL])
def test_ctrl_c_during_a_pause_ends_the_run_at_once(victims: tuple[str, ...]) -> None:
    story = underway()
    story.end(*victims, code=137)
    commands = story.on(Interrupted("SIGINT"))
    if victims == ALL:
        assert outcome(commands) == RunOutcome(INTERRUPTED, "interrupted by SIGINT")
        return
    assert commands == ([Terminate(LEARNER)] if LEARNER not in victims else [Terminate(name) for name in PRODUCERS])
    assert story.after(STOP_S - 1) == []
    rest = [name for name in ALL if name not in victims]
    assert not any(isinstance(command, Restart) for command in story.end(*rest, code=1))
    assert story.core.outcome == RunOutcome(INTERRUPTED, "interrupted by SIGINT")
    assert story.core.state is SupervisionState.DONE


def test_all_that_die_at_once_are_started_again() -> None:
    story = underway()
    story.end(*ALL, code=137)
    assert sorted(command.name for command in story.after(1) if isinstance(command, Restart)) == sorted(ALL)
