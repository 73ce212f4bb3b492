from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.exit_codes import FAILED, FINISHED, INTERRUPTED, WRONG_INPUT
from launch.outcome import RunOutcome
from launch.supervise.events import (
    BrokerBack,
    BrokerLost,
    Command,
    Done,
    Event,
    Exited,
    Interrupted,
    Joined,
    Kill,
    Restart,
    RestartBroker,
    RunClaimed,
    StopSeen,
    Terminate,
    Tick,
    VersionsTrained,
)
from launch.supervise.states import END_S, KILL_S, LEAVE_S, ORDERLY_S, SupervisionState
from tests.fakes.launch.supervision_story import ALL, LEARNER, PRODUCERS, SILENT, START_S, STOP_S, Story, outcome, underway


def test_a_finished_run_lets_the_producers_leave_by_themselves() -> None:
    story = Story()
    assert story.on(RunClaimed()) == []
    assert story.on(StopSeen("all 40 steps are trained", finished=True)) == []
    assert story.end("producer-0") == []
    assert story.end("learner-0") == []
    assert outcome(story.end("producer-1")) == RunOutcome(FINISHED, "all 40 steps are trained")


def test_a_producer_that_stays_after_the_end_is_asked_and_then_killed() -> None:
    story = Story()
    story.end("learner-0", "producer-0")
    assert story.after(LEAVE_S - 1) == []
    assert story.after(1) == [Terminate("producer-1")]
    assert story.after(STOP_S) == [Kill("producer-1")]
    assert outcome(story.end("producer-1", code=137)).code == FINISHED


@pytest.mark.parametrize(("code", "words"), [(1, "exit code 1"), (137, "SIGKILL"), (139, "SIGSEGV")])
def test_a_producer_that_dies_ends_the_run_with_its_name(code: int, words: str) -> None:
    story = Story()
    assert story.end("producer-1", code=code) == [Terminate("learner-0")]
    assert story.end("learner-0", code=1) == [Terminate("producer-0")]
    ended = outcome(story.end("producer-0"))
    assert (ended.code, ended.blame) == (FAILED, "producer-1")
    assert words in ended.cause


def test_a_producer_that_ends_cleanly_before_it_joined_ends_the_run() -> None:
    story = Story()
    assert story.end("producer-0") == []
    assert story.after(ORDERLY_S) == [Terminate(LEARNER)]
    story.end(LEARNER, code=1)
    assert outcome(story.end("producer-1")) == RunOutcome(
        FAILED, "producer-0 ended with exit code 0 before the run was finished", "producer-0"
    )


def test_a_producer_that_has_left_is_not_started_again_and_the_run_continues_even_without_any() -> None:
    story = underway()
    assert story.end(*PRODUCERS) == []
    assert story.lines == []
    assert story.after(ORDERLY_S) == []
    assert story.lines == [f"{name} has left the run; it will not be started again" for name in PRODUCERS]
    assert story.after(10 * START_S) == []
    assert story.core.state is SupervisionState.RUNNING
    assert outcome(story.end(LEARNER)).code == FINISHED


def test_a_producer_that_leaves_just_before_the_stop_is_seen_did_nothing_wrong() -> None:
    story = Story()
    story.end("producer-0")
    story.now += 1
    assert story.on(StopSeen("done", finished=True)) == []
    assert story.after(ORDERLY_S + 1) == []
    story.end("producer-1")
    assert outcome(story.end("learner-0")).code == FINISHED


def test_a_stop_that_a_person_asked_for_is_no_failure_and_blames_nobody() -> None:
    story = Story()
    story.on(StopSeen("stopped by somebody", finished=False, ordered=True))
    story.end("learner-0", code=1)
    story.end("producer-0")
    ended = outcome(story.end("producer-1"))
    assert (ended.code, ended.cause, ended.blame) == (INTERRUPTED, "stopped by somebody", None)


def test_a_learner_that_dies_ends_the_run_and_its_stop_is_the_cause() -> None:
    story = Story()
    story.on(StopSeen("no group was accepted for 600 s", finished=False))
    assert story.end("learner-0", code=1) == []
    story.end("producer-0")
    ended = outcome(story.end("producer-1"))
    assert (ended.code, ended.blame) == (FAILED, "learner-0")
    assert "no group was accepted" in ended.cause


def test_a_learner_that_dies_without_a_stop_has_its_producers_ended_at_once() -> None:
    story = Story()
    assert story.end("learner-0", code=134) == [Terminate("producer-0"), Terminate("producer-1")]
    story.end("producer-0")
    assert "SIGABRT" in outcome(story.end("producer-1")).cause


@pytest.mark.parametrize("name", ["learner-0", "producer-0"])
def test_wrong_input_found_by_a_process_is_wrong_input_of_the_run(name: str) -> None:
    story = Story()
    commands = story.end(name, code=2)
    for other in ("learner-0", *PRODUCERS):
        if other != name:
            commands = story.end(other)
    assert outcome(commands).code == WRONG_INPUT


def test_a_learner_that_never_claims_the_run_is_a_failure() -> None:
    story = Story()
    assert story.after(START_S - 1) == []
    assert story.after(1) == [Terminate("learner-0")]
    assert story.after(STOP_S) == [Kill("learner-0"), Terminate("producer-0"), Terminate("producer-1")]
    story.end("learner-0", "producer-0", code=137)
    assert "did not claim" in outcome(story.end("producer-1")).cause


def test_a_run_that_was_claimed_may_take_as_long_as_it_takes() -> None:
    story = Story()
    story.on(RunClaimed())
    assert story.after(100 * START_S) == []
    assert story.core.state is SupervisionState.RUNNING


def test_a_learner_that_does_not_end_after_its_stop_is_ended() -> None:
    story = Story()
    story.on(StopSeen("done", finished=True))
    assert story.after(END_S) == [Terminate("learner-0")]


def test_ctrl_c_ends_the_learner_first_then_the_producers() -> None:
    story = Story()
    assert story.on(Interrupted("SIGINT")) == [Terminate("learner-0")]
    assert story.end("learner-0", code=1) == [Terminate("producer-0"), Terminate("producer-1")]
    story.end("producer-0")
    assert outcome(story.end("producer-1")) == RunOutcome(INTERRUPTED, "interrupted by SIGINT")


def test_a_second_ctrl_c_kills_at_once() -> None:
    story = Story()
    story.on(Interrupted("SIGINT"))
    assert story.on(Interrupted("SIGINT")) == [Kill("learner-0"), Kill("producer-0"), Kill("producer-1")]
    assert outcome(story.after(KILL_S)).code == INTERRUPTED


def test_ctrl_c_after_the_end_does_not_make_a_finished_run_a_failed_one() -> None:
    story = Story()
    story.end("learner-0")
    assert story.on(Interrupted("SIGINT")) == [Kill("producer-0"), Kill("producer-1")]
    story.end("producer-0", code=137)
    assert outcome(story.end("producer-1", code=137)).code == FINISHED


def test_the_first_cause_is_the_one_that_is_reported() -> None:
    story = Story()
    story.end("producer-0", code=1)
    story.on(SILENT)
    story.on(StopSeen("no producer", finished=False))
    story.end("learner-0", code=1)
    assert outcome(story.end("producer-1", code=1)).blame == "producer-0"


# --- whatever happens -------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(ALL)
EVENTS = st.one_of(
    st.builds(Exited, NAMES, st.sampled_from([0, 1, 2, 137])),
    st.builds(RunClaimed),
    st.builds(Joined, NAMES),
    st.builds(VersionsTrained, st.integers(0, 5)),
    st.builds(StopSeen, st.just("why"), st.booleans()),
    st.builds(Interrupted, st.just("SIGTERM")),
    st.builds(BrokerLost, st.just("gone"), st.booleans()),
    st.builds(BrokerBack),
    st.builds(Tick),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 50)), max_size=40), st.booleans(), st.integers(0, 2))
def test_whatever_happens_it_ends_once_within_a_bounded_time(
    events: list[tuple[Event, float]], stubborn: bool, restarts: int
) -> None:
    """Once the run is ending nothing is started, it is over by its deadlines, also when no process obeys, and nothing follows
    `Done`."""
    story = Story(max_restarts=restarts, max_producer_restarts=restarts, max_broker_restarts=restarts)
    done: list[RunOutcome] = []
    alive = set(ALL)
    broker_away = False

    def take(commands: list[Command]) -> None:
        for command in commands:
            assert not done, f"{command} after the end"
            match command:
                case Done(ended):
                    done.append(ended)
                case Terminate(name) | Kill(name):
                    assert name in alive, f"{command}, which has ended"
                case Restart(name):
                    assert name not in alive, f"{command}, which lives"
                    assert story.core.state is SupervisionState.RUNNING and not broker_away
                    alive.add(name)
                case RestartBroker():
                    assert story.core.state in (SupervisionState.RUNNING, SupervisionState.ENDING) and broker_away

    for event, seconds in events:
        story.now += seconds
        if isinstance(event, Exited):
            if event.name not in alive:
                continue
            alive.remove(event.name)
        if isinstance(event, BrokerLost | BrokerBack):
            broker_away = isinstance(event, BrokerLost)
        take(story.on(event))
    if not done:
        take(story.on(Interrupted("SIGTERM")))
    until = story.now + LEAVE_S + 2 * STOP_S + KILL_S + END_S
    while not done:
        assert story.now <= until, f"still {story.core.state}"
        story.now += 1
        if not stubborn and alive:
            name = min(alive)
            alive.remove(name)
            take(story.on(Exited(name, 0)))
        take(story.on(Tick()))
    assert story.on(Tick()) == []
