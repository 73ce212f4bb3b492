from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.supervise.events import (
    BrokerBack,
    BrokerLost,
    Claimed,
    Command,
    Done,
    Event,
    Exited,
    Interrupted,
    Joined,
    Kill,
    Progress,
    Start,
    StartBroker,
    StopSeen,
    Tell,
    Terminate,
    Tick,
)
from launch.supervise.outage import LINE_S
from launch.supervise.outcome import FAILED, FINISHED, INTERRUPTED, WRONG_INPUT, Outcome
from launch.supervise.states import BROKERLESS_S, END_S, KILL_S, LEAVE_S, ORDERLY_S, READ_S, State
from launch.supervise.supervision import Supervision
from schemas.config.launch import RestartConfig

START_S, STOP_S, OUTAGE_S = 600.0, 30.0, 300.0
LEARNER = "learner-0"
PRODUCERS = ("producer-0", "producer-1")
ALL = (LEARNER, *PRODUCERS)
ENDED = BrokerLost("the local broker (pid 7) has ended", ended=True)
SILENT = BrokerLost("nobody listens at kafka:9092")
TAKEN_OVER = Outcome(FAILED, "another learner has taken the run over", LEARNER)


class Story:
    """A supervision with a clock that the test moves. Lines that are told are kept apart."""

    def __init__(self, **restart: float) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.core = Supervision(
            LEARNER,
            PRODUCERS,
            restart=RestartConfig.model_validate(restart),
            start_timeout_s=START_S,
            stop_timeout_s=STOP_S,
            outage_timeout_s=OUTAGE_S,
            now=0.0,
        )

    def on(self, event: Event) -> list[Command]:
        commands = self.core.on(event, self.now)
        self.told += [command.line for command in commands if isinstance(command, Tell)]
        return [command for command in commands if not isinstance(command, Tell)]

    def after(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.on(Tick())

    def end(self, *names: str, code: int = 0) -> list[Command]:
        return [command for name in names for command in self.on(Exited(name, code))]


def underway(**restart: float) -> Story:
    """A run whose processes have all joined."""
    story = Story(**restart)
    story.on(Claimed())
    for name in ALL:
        story.on(Joined(name))
    return story


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


def test_a_producer_that_ends_cleanly_before_it_joined_ends_the_run() -> None:
    story = Story()
    assert story.end("producer-0") == []
    assert story.after(ORDERLY_S) == [Terminate(LEARNER)]
    story.end(LEARNER, code=1)
    assert outcome(story.end("producer-1")) == Outcome(
        FAILED, "producer-0 ended with exit code 0 before the run was finished", "producer-0"
    )


def test_a_producer_that_has_left_is_not_started_again_and_the_run_goes_on_even_without_any() -> None:
    story = underway()
    assert story.end(*PRODUCERS) == []
    assert story.told == []
    assert story.after(ORDERLY_S) == []
    assert story.told == [f"{name} has left the run; it is not started again" for name in PRODUCERS]
    assert story.after(10 * START_S) == []
    assert story.core.state is State.RUNNING
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
    story.on(Claimed())
    assert story.after(100 * START_S) == []
    assert story.core.state is State.RUNNING


def test_a_learner_that_does_not_end_after_its_stop_is_ended() -> None:
    story = Story()
    story.on(StopSeen("done", finished=True))
    assert story.after(END_S) == [Terminate("learner-0")]


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
    story.on(SILENT)
    story.on(StopSeen("no producer", finished=False))
    story.end("learner-0", code=1)
    assert outcome(story.end("producer-1", code=1)).blame == "producer-0"


# --- starting again ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 137])
def test_a_producer_that_had_joined_is_started_again_after_a_pause(code: int) -> None:
    story = underway(backoff_s=2)
    assert story.end("producer-0", code=code) == []
    assert story.after(1.9) == []
    assert story.after(0.1) == [Start("producer-0")]
    assert story.after(1) == []
    assert story.core.restarts == {"producer-0": 1}
    word = "signal SIGKILL" if code == 137 else "exit code 1"
    assert story.told == [f"producer-0 died ({word}), started again in 2 s (restart 1)"]


def test_pauses_double_up_to_the_longest_and_start_anew_when_a_producer_did_well() -> None:
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
        assert story.after(10) == [Start("producer-1")]
    assert story.end("producer-1", code=139) == [Terminate(LEARNER)]
    story.end(LEARNER, code=1)
    ended = outcome(story.end("producer-0"))
    assert (ended.code, ended.blame) == (FAILED, "producer-1")
    assert "SIGSEGV" in ended.cause and "2 restarts in 100 s (launch.restart.max_producer_restarts)" in ended.cause


def test_a_restarted_producer_that_says_wrong_input_ends_the_run() -> None:
    story = underway()
    story.end("producer-0", code=137)
    assert story.after(1) == [Start("producer-0")]
    assert story.end("producer-0", code=2) == [Terminate(LEARNER)]


def test_a_learner_that_had_joined_is_started_again_and_the_producers_are_left_alone() -> None:
    story = underway()
    assert story.end(LEARNER, code=137) == []
    assert story.core.learner_away
    assert story.after(1) == [Start(LEARNER)]
    assert story.core.learner_away
    story.on(Claimed())
    assert not story.core.learner_away
    assert story.after(10 * START_S) == []
    story.on(StopSeen("all 40 steps are trained", finished=True))
    story.end(LEARNER, *PRODUCERS)
    assert story.core.outcome == Outcome(FINISHED, "all 40 steps are trained")


@pytest.mark.parametrize("joined", [(), ("producer-0", "producer-1")])
def test_a_learner_without_a_checkpoint_is_not_started_again(joined: tuple[str, ...]) -> None:
    story = Story()
    story.on(Claimed())
    for name in joined:
        story.on(Joined(name))
    assert story.end(LEARNER, code=137) == [Terminate("producer-0"), Terminate("producer-1")]


def test_a_learner_that_makes_no_progress_ends_the_run_and_progress_counts_anew() -> None:
    story = underway(max_restarts=2, backoff_s=1)
    for steps in (3, 3, 4, 4):
        story.on(Progress(steps))
        assert story.end(LEARNER, code=1) == []
        assert story.after(30) == [Start(LEARNER)]
        story.on(Claimed())
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
    assert story.after(1) == [Start(LEARNER)]
    assert story.after(START_S - 1) == []
    assert story.after(1) == [Terminate(LEARNER)]


def test_a_learner_that_lost_the_run_to_another_does_not_take_it_back() -> None:
    story = underway()
    story.end(LEARNER, code=1)
    story.after(1)
    story.on(Claimed())
    story.on(Claimed())
    assert story.end(LEARNER, code=1) == [Terminate("producer-0"), Terminate("producer-1")]
    assert story.core.outcome == TAKEN_OVER


def test_a_life_that_died_before_its_claim_makes_no_room_for_a_foreign_one() -> None:
    story = underway()
    for code, claims in ((137, 0), (1, 0), (1, 2)):
        assert story.end(LEARNER, code=code) == []
        assert story.after(30) == [Start(LEARNER)]
        for _ in range(claims):
            story.on(Claimed())
    assert story.end(LEARNER, code=1) == [Terminate("producer-0"), Terminate("producer-1")]
    assert story.core.outcome == TAKEN_OVER


def test_a_foreign_claim_that_is_read_in_the_pause_before_a_start_ends_the_run() -> None:
    story = underway()
    assert story.end(LEARNER, code=1) == []
    assert story.on(Claimed()) == [Terminate("producer-0"), Terminate("producer-1")]
    assert story.after(1) == []
    assert story.core.outcome == TAKEN_OVER


def test_the_claim_of_a_learner_that_died_right_after_it_is_its_own() -> None:
    story = underway()
    story.end(LEARNER, code=137)
    story.after(1)
    story.end(LEARNER, code=137)
    assert story.on(Claimed()) == []
    assert story.after(2) == [Start(LEARNER)]


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
        story.on(Claimed())
    assert story.end(LEARNER, code=1) == []
    assert story.end("producer-0") == []
    story.now += READ_S - 0.1
    assert story.on(StopSeen("stopped by a@b", finished=False, ordered=True)) == []
    assert outcome(story.end("producer-1")) == Outcome(INTERRUPTED, "stopped by a@b")


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
    assert story.after(1) == [Start(LEARNER)]
    story.on(StopSeen("the broker was away", finished=False))
    story.on(Claimed())
    assert story.core.state is State.RUNNING
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
        assert outcome(commands) == Outcome(INTERRUPTED, "interrupted by SIGINT")
        return
    assert commands == ([Terminate(LEARNER)] if LEARNER not in victims else [Terminate(name) for name in PRODUCERS])
    assert story.after(STOP_S - 1) == []
    rest = [name for name in ALL if name not in victims]
    assert not any(isinstance(command, Start) for command in story.end(*rest, code=1))
    assert story.core.outcome == Outcome(INTERRUPTED, "interrupted by SIGINT")
    assert story.core.state is State.DONE


def test_all_that_die_at_once_are_started_again() -> None:
    story = underway()
    story.end(*ALL, code=137)
    assert sorted(command.name for command in story.after(1) if isinstance(command, Start)) == sorted(ALL)


# --- the broker -------------------------------------------------------------------------------------------------------------


def test_a_broker_of_ours_is_started_again_and_nobody_else_is_touched() -> None:
    story = underway(backoff_s=1)
    assert story.on(ENDED) == []
    assert story.told == ["the local broker (pid 7) has ended, started again in 1 s (restart 1)"]
    assert story.after(1) == [StartBroker()]
    assert story.after(5) == []
    assert story.on(BrokerBack()) == []
    assert story.told[-1] == "the broker is back after 6 s"
    assert story.core.restarts == {"broker": 1}


def test_a_broker_whose_disk_is_full_is_started_again_until_there_is_room() -> None:
    story = underway(max_broker_restarts=1, max_backoff_s=30)
    full = BrokerLost("the local broker (pid 7) has ended: No space left on device", ended=True, full=True)
    for _ in range(4):
        assert story.on(full) == []
        assert story.after(29) == []
        assert story.after(1) == [StartBroker()]
    assert story.told[0] == (
        "the local broker (pid 7) has ended: No space left on device: make room; it is started again every 30 s, for up to "
        "300 s (kafka.outage_timeout_s)"
    )
    assert story.on(BrokerBack()) == []
    assert story.told[-1] == "the broker is back after 120 s"


def test_a_broker_whose_disk_is_full_is_left_alone_where_no_broker_may_be_started_again() -> None:
    story = underway(max_broker_restarts=0)
    assert Terminate(LEARNER) in story.on(BrokerLost("No space left on device", ended=True, full=True))


def test_a_broker_that_does_not_start_is_tried_again_a_bounded_number_of_times() -> None:
    story = underway(max_broker_restarts=3, backoff_s=1)
    for pause in (1, 2, 4):
        assert story.on(BrokerLost("the local broker does not start (no space)", ended=True)) == []
        assert story.after(pause) == [StartBroker()]
    assert story.on(BrokerLost("the local broker does not start (no space)", ended=True)) == [Terminate(name) for name in ALL]
    assert story.core.outcome is not None
    assert story.core.outcome.blame == "broker" and "no space" in story.core.outcome.cause
    assert story.after(BROKERLESS_S) == [Kill(name) for name in ALL]


def test_a_broker_that_is_not_ours_is_waited_for_and_told_of_now_and_then() -> None:
    story = underway()
    story.on(SILENT)
    story.on(SILENT)
    assert len(story.told) == 1 and f"{OUTAGE_S:g} s (kafka.outage_timeout_s)" in story.told[0]
    for _ in range(int(2 * LINE_S)):
        assert story.after(1) == []
    assert len(story.told) == 3
    story.on(BrokerBack())
    assert story.after(10 * OUTAGE_S) == []
    assert story.core.state is State.RUNNING


def test_a_broker_that_stays_away_ends_all_processes_at_once() -> None:
    story = underway()
    story.on(SILENT)
    assert story.after(OUTAGE_S - 1) == []
    assert story.after(1) == [Terminate(name) for name in ALL]
    story.end(LEARNER, "producer-0", code=1)
    ended = outcome(story.end("producer-1"))
    assert (ended.code, ended.blame) == (FAILED, "broker")
    assert "nobody listens at kafka:9092" in ended.cause


def test_without_restarts_the_brokers_death_ends_all_processes_at_once() -> None:
    story = underway(max_broker_restarts=0)
    assert story.on(ENDED) == [Terminate(name) for name in ALL]
    assert story.core.outcome == Outcome(FAILED, "the local broker (pid 7) has ended", "broker")


def test_nothing_is_started_while_the_broker_is_away() -> None:
    story = underway()
    story.on(SILENT)
    assert story.end(LEARNER, "producer-0", code=1) == []
    assert "once the broker is back" in story.told[-1]
    assert story.after(60) == []
    story.on(BrokerBack())
    assert story.on(Tick()) == []
    assert sorted(command.name for command in story.after(READ_S) if isinstance(command, Start)) == [LEARNER, "producer-0"]


def test_a_stop_that_was_written_before_the_broker_died_is_read_before_anything_is_started() -> None:
    story = underway()
    story.end(LEARNER, code=1)
    story.on(ENDED)
    assert story.after(60) == [StartBroker()]
    story.on(BrokerBack())
    assert story.after(READ_S - 0.1) == []
    assert story.on(StopSeen("stopped by a@b", finished=False, ordered=True)) == []
    assert story.after(60) == [Terminate("producer-0"), Terminate("producer-1")]
    assert story.core.outcome == Outcome(INTERRUPTED, "stopped by a@b")


def test_broker_and_learner_that_die_together_both_come_back() -> None:
    story = underway(backoff_s=1)
    story.end(LEARNER, code=137)
    story.on(ENDED)
    assert story.after(1) == [StartBroker()]
    assert story.after(5) == []
    story.on(BrokerBack())
    assert story.after(READ_S) == [Start(LEARNER)]


def test_who_found_no_broker_at_its_start_had_no_wrong_input() -> None:
    story = underway()
    story.end("producer-0", code=137)
    assert story.after(1) == [Start("producer-0")]
    story.on(SILENT)
    assert story.end("producer-0", code=2) == []
    story.on(BrokerBack())
    assert story.after(30) == [Start("producer-0")]
    assert story.end("producer-0", code=2) == [Terminate(LEARNER)]


def test_an_outage_before_the_claim_does_not_use_up_the_learners_time() -> None:
    story = Story()
    story.now = START_S - 1
    story.on(SILENT)
    assert story.after(100) == []
    story.on(BrokerBack())
    assert story.after(START_S - 1) == []
    assert story.after(1) == [Terminate(LEARNER)]


def test_a_process_that_dies_at_its_start_for_want_of_a_broker_blames_the_broker() -> None:
    story = Story()
    story.on(SILENT)
    story.end("producer-0", code=2)
    assert story.core.outcome == Outcome(FAILED, SILENT.detail, "broker")


def test_ctrl_c_while_the_broker_is_away_does_not_wait_for_a_stop_to_be_published() -> None:
    story = underway()
    story.on(ENDED)
    assert story.on(Interrupted("SIGINT")) == [Terminate(name) for name in ALL]
    assert story.after(BROKERLESS_S) == [Kill(name) for name in ALL]


# --- whatever happens -------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(ALL)
EVENTS = st.one_of(
    st.builds(Exited, NAMES, st.sampled_from([0, 1, 2, 137])),
    st.builds(Claimed),
    st.builds(Joined, NAMES),
    st.builds(Progress, st.integers(0, 5)),
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
    done: list[Outcome] = []
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
                case Start(name):
                    assert name not in alive, f"{command}, which lives"
                    assert story.core.state is State.RUNNING and not broker_away
                    alive.add(name)
                case StartBroker():
                    assert story.core.state in (State.RUNNING, State.ENDING) and broker_away

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
