from __future__ import annotations

from launch.exit_codes import FAILED, INTERRUPTED
from launch.outcome import RunOutcome
from launch.supervise.events import (
    BrokerBack,
    BrokerLost,
    Interrupted,
    Kill,
    Restart,
    RestartBroker,
    StopSeen,
    Terminate,
    Tick,
)
from launch.supervise.outage import LINE_S
from launch.supervise.states import BROKERLESS_S, READ_S, SupervisionState
from tests.fakes.launch.supervision_story import ALL, ENDED, LEARNER, OUTAGE_S, SILENT, START_S, Story, outcome, underway


def test_a_broker_of_ours_is_started_again_and_nobody_else_is_touched() -> None:
    story = underway(backoff_s=1)
    assert story.on(ENDED) == []
    assert story.lines == ["the local broker (pid 7) has ended; it will be started again in 1 s (restart 1)"]
    assert story.after(1) == [RestartBroker()]
    assert story.after(5) == []
    assert story.on(BrokerBack()) == []
    assert story.lines[-1] == "the broker is back after 6 s"
    assert story.core.restarts == {"broker": 1}


def test_a_broker_whose_disk_is_full_is_started_again_until_there_is_room() -> None:
    story = underway(max_broker_restarts=1, max_backoff_s=30)
    full = BrokerLost("the local broker (pid 7) has ended: No space left on device", ended=True, full=True)
    for _ in range(4):
        assert story.on(full) == []
        assert story.after(29) == []
        assert story.after(1) == [RestartBroker()]
    assert story.lines[0] == (
        "the local broker (pid 7) has ended: No space left on device: make room; it will be started again every 30 s, for up to "
        "300 s (kafka.outage_timeout_s)"
    )
    assert story.on(BrokerBack()) == []
    assert story.lines[-1] == "the broker is back after 120 s"


def test_a_broker_whose_disk_is_full_is_left_alone_where_no_broker_may_be_started_again() -> None:
    story = underway(max_broker_restarts=0)
    assert Terminate(LEARNER) in story.on(BrokerLost("No space left on device", ended=True, full=True))


def test_a_broker_that_does_not_start_is_tried_again_a_bounded_number_of_times() -> None:
    story = underway(max_broker_restarts=3, backoff_s=1)
    for pause in (1, 2, 4):
        assert story.on(BrokerLost("the local broker did not start (no space)", ended=True)) == []
        assert story.after(pause) == [RestartBroker()]
    assert story.on(BrokerLost("the local broker did not start (no space)", ended=True)) == [Terminate(name) for name in ALL]
    assert story.core.outcome is not None
    assert story.core.outcome.blame == "broker" and "no space" in story.core.outcome.cause
    assert story.after(BROKERLESS_S) == [Kill(name) for name in ALL]


def test_a_broker_that_is_not_ours_is_waited_for_with_a_line_now_and_then() -> None:
    story = underway()
    story.on(SILENT)
    story.on(SILENT)
    assert len(story.lines) == 1 and f"{OUTAGE_S:g} s (kafka.outage_timeout_s)" in story.lines[0]
    for _ in range(int(2 * LINE_S)):
        assert story.after(1) == []
    assert len(story.lines) == 3
    story.on(BrokerBack())
    assert story.after(10 * OUTAGE_S) == []
    assert story.core.state is SupervisionState.RUNNING


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
    assert story.core.outcome == RunOutcome(FAILED, "the local broker (pid 7) has ended", "broker")


def test_nothing_is_started_while_the_broker_is_away() -> None:
    story = underway()
    story.on(SILENT)
    assert story.end(LEARNER, "producer-0", code=1) == []
    assert "once the broker is back" in story.lines[-1]
    assert story.after(60) == []
    story.on(BrokerBack())
    assert story.on(Tick()) == []
    assert sorted(command.name for command in story.after(READ_S) if isinstance(command, Restart)) == [LEARNER, "producer-0"]


def test_a_stop_that_was_written_before_the_broker_died_is_read_before_anything_is_started() -> None:
    story = underway()
    story.end(LEARNER, code=1)
    story.on(ENDED)
    assert story.after(60) == [RestartBroker()]
    story.on(BrokerBack())
    assert story.after(READ_S - 0.1) == []
    assert story.on(StopSeen("stopped by a@b", finished=False, ordered=True)) == []
    assert story.after(60) == [Terminate("producer-0"), Terminate("producer-1")]
    assert story.core.outcome == RunOutcome(INTERRUPTED, "stopped by a@b")


def test_broker_and_learner_that_die_together_both_come_back() -> None:
    story = underway(backoff_s=1)
    story.end(LEARNER, code=137)
    story.on(ENDED)
    assert story.after(1) == [RestartBroker()]
    assert story.after(5) == []
    story.on(BrokerBack())
    assert story.after(READ_S) == [Restart(LEARNER)]


def test_who_found_no_broker_at_its_start_had_no_wrong_input() -> None:
    story = underway()
    story.end("producer-0", code=137)
    assert story.after(1) == [Restart("producer-0")]
    story.on(SILENT)
    assert story.end("producer-0", code=2) == []
    story.on(BrokerBack())
    assert story.after(30) == [Restart("producer-0")]
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
    assert story.core.outcome == RunOutcome(FAILED, SILENT.detail, "broker")


def test_ctrl_c_while_the_broker_is_away_does_not_wait_for_a_stop_to_be_published() -> None:
    story = underway()
    story.on(ENDED)
    assert story.on(Interrupted("SIGINT")) == [Terminate(name) for name in ALL]
    assert story.after(BROKERLESS_S) == [Kill(name) for name in ALL]
