from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.supervision import (
    END_S,
    FAILED,
    FINISHED,
    INTERRUPTED,
    KILL_S,
    LEAVE_S,
    ORDERLY_S,
    WRONG_INPUT,
    BrokerLost,
    Claimed,
    Command,
    Done,
    Event,
    Exited,
    Interrupted,
    Kill,
    Outcome,
    State,
    StopSeen,
    Supervision,
    Terminate,
    Tick,
)

START_S, STOP_S = 600.0, 30.0
PRODUCERS = ("producer-0", "producer-1")


class Story:
    """A supervision with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.core = Supervision("learner-0", PRODUCERS, start_timeout_s=START_S, stop_timeout_s=STOP_S, now=0.0)

    def on(self, event: Event) -> list[Command]:
        return self.core.on(event, self.now)

    def after(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.on(Tick())

    def end(self, *names: str, code: int = 0) -> list[Command]:
        return [command for name in names for command in self.on(Exited(name, code))]


def outcome(commands: list[Command]) -> Outcome:
    (done,) = commands
    assert isinstance(done, Done)
    return done.outcome


def test_a_finished_run_lets_the_producers_leave_by_themselves() -> None:
    story = Story()
    assert story.on(Claimed()) == []
    assert story.on(StopSeen("all 40 steps are trained", finished=True)) == []
    assert story.end("producer-0") == []
    assert story.end("learner-0") == []
    assert outcome(story.end("producer-1")) == Outcome(FINISHED, "all 40 steps are trained")


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


def test_a_producer_that_ends_cleanly_before_the_run_ends_the_run_too() -> None:
    story = Story()
    assert story.end("producer-0") == []
    assert story.after(ORDERLY_S) == [Terminate("learner-0")]
    story.end("learner-0", code=1)
    assert outcome(story.end("producer-1")) == Outcome(
        FAILED, "producer-0 ended with exit code 0 before the run was finished", "producer-0"
    )


def test_a_producer_that_leaves_just_before_the_stop_is_seen_did_nothing_wrong() -> None:
    story = Story()
    story.end("producer-0")
    story.now += 1
    assert story.on(StopSeen("done", finished=True)) == []
    assert story.after(ORDERLY_S + 1) == []
    story.end("producer-1")
    assert outcome(story.end("learner-0")).code == FINISHED


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
    story.on(Claimed())
    assert story.after(100 * START_S) == []
    assert story.core.state is State.RUNNING


def test_a_learner_that_does_not_end_after_its_stop_is_ended() -> None:
    story = Story()
    story.on(StopSeen("done", finished=True))
    assert story.after(END_S) == [Terminate("learner-0")]


def test_the_brokers_death_ends_all_processes_at_once() -> None:
    story = Story()
    all_three = ["learner-0", "producer-0", "producer-1"]
    assert story.on(BrokerLost("the local broker (pid 7) has ended")) == [Terminate(name) for name in all_three]
    assert story.on(BrokerLost("again")) == []
    story.end("learner-0", "producer-0", code=1)
    assert outcome(story.end("producer-1")) == Outcome(FAILED, "the local broker (pid 7) has ended", "broker")


def test_ctrl_c_ends_the_learner_first_then_the_producers() -> None:
    story = Story()
    assert story.on(Interrupted("SIGINT")) == [Terminate("learner-0")]
    assert story.end("learner-0", code=1) == [Terminate("producer-0"), Terminate("producer-1")]
    story.end("producer-0")
    assert outcome(story.end("producer-1")) == Outcome(INTERRUPTED, "interrupted by SIGINT")


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


def test_the_first_cause_is_the_one_that_is_told() -> None:
    story = Story()
    story.end("producer-0", code=1)
    story.on(BrokerLost("gone"))
    story.on(StopSeen("no producer", finished=False))
    story.end("learner-0", code=1)
    assert outcome(story.end("producer-1", code=1)).blame == "producer-0"


NAMES = st.sampled_from(("learner-0", *PRODUCERS))
EVENTS = st.one_of(
    st.builds(Exited, NAMES, st.sampled_from([0, 1, 2, 137])),
    st.builds(Claimed),
    st.builds(StopSeen, st.just("why"), st.booleans()),
    st.builds(Interrupted, st.just("SIGTERM")),
    st.builds(BrokerLost, st.just("gone")),
    st.builds(Tick),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 50)), max_size=30), st.booleans())
def test_whatever_happens_it_ends_once_within_a_bounded_time(events: list[tuple[Event, float]], stubborn: bool) -> None:
    """Once the run is ending, it is over by its deadlines, also when no process obeys; and nothing follows `Done`."""
    story = Story()
    done: list[Outcome] = []
    alive = {"learner-0", *PRODUCERS}

    def take(commands: list[Command]) -> None:
        for command in commands:
            assert not done, f"{command} after the end"
            match command:
                case Done(ended):
                    done.append(ended)
                case Terminate(name) | Kill(name):
                    assert name in alive, f"{command}, which has ended"

    for event, seconds in events:
        story.now += seconds
        if isinstance(event, Exited):
            if event.name not in alive:
                continue
            alive.remove(event.name)
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
