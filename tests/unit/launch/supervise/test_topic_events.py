"""Events of a supervision from what the topics show."""

from __future__ import annotations

from launch.observe.run_view import RunView
from launch.supervise.events import Event, Joined, RunClaimed, StopSeen, VersionsTrained
from launch.supervise.topic_events import TopicEvents
from schemas.records.control import State, Stop
from tests.fakes.launch.observed_run import step
from tests.fakes.records.make import make_claim, make_heartbeat, make_state
from tests.fakes.records.runs import RUN

FIRST, SECOND = "producer-0-aaaa", "producer-0-bbbb"


class Seen:
    """A run's topics, and the events that follow from them."""

    def __init__(self) -> None:
        self.view = RunView(RUN, 0.0)
        self.events = TopicEvents("learner-0", ["producer-0", "producer-1"])

    def members(self, *names: str) -> None:
        self.view.control(make_state(*names), 0.0, 1)

    def claim(self, offset: int) -> None:
        self.view.control(make_claim(), 0.0, offset)

    def new(self) -> list[Event]:
        return list(self.events.of(self.view.snapshot(0.0)))


def stopped(reason: str, incarnation: int = 0) -> State:
    return make_state(incarnation=incarnation, stop=Stop(reason=reason, version=3, resumable=True, ordered=True))


def test_every_claim_is_one_event() -> None:
    seen = Seen()
    assert seen.new() == []
    seen.claim(0)
    seen.claim(7)
    assert seen.new() == [RunClaimed(), RunClaimed()]
    assert seen.new() == []


def test_a_process_joins_when_its_producer_is_a_member_that_was_heard_and_only_once() -> None:
    seen = Seen()
    seen.members(FIRST)
    assert seen.new() == []
    seen.view.status(make_heartbeat(FIRST), 0.0)
    assert seen.new() == [Joined("producer-0")]
    seen.members(FIRST, SECOND)
    seen.view.status(make_heartbeat(SECOND), 0.0)
    assert seen.new() == []


def test_a_producer_that_is_known_to_be_dead_neither_joins_nor_is_shown() -> None:
    seen = Seen()
    seen.members(FIRST)
    seen.view.status(make_heartbeat(FIRST), 0.0)
    seen.events.died("producer-0", seen.view.snapshot(0.0))
    assert seen.new() == []
    assert list(seen.events.without_dead(seen.view.snapshot(0.0)).producers) == []
    seen.members(FIRST, SECOND)
    seen.view.status(make_heartbeat(SECOND), 0.0)
    assert seen.new() == [Joined("producer-0")]
    assert [row.name for row in seen.events.without_dead(seen.view.snapshot(0.0)).producers] == [SECOND]


def test_the_learner_joins_with_a_checkpoint_after_its_claim() -> None:
    seen = Seen()
    assert not seen.events.waits_for_checkpoint
    seen.claim(0)
    seen.new()
    assert seen.events.waits_for_checkpoint
    assert seen.events.checkpoint() == Joined("learner-0")
    assert not seen.events.waits_for_checkpoint


def test_a_stop_is_one_event_and_that_of_a_later_learner_is_another_one() -> None:
    seen = Seen()
    seen.view.control(stopped("no producer"), 0.0, 1)
    assert seen.new() == [StopSeen("no producer", finished=False, ordered=True)]
    assert seen.new() == []
    seen.view.control(stopped("no producer", incarnation=40), 0.0, 41)
    assert seen.new() == [StopSeen("no producer", finished=False, ordered=True)]


def test_trained_versions_are_counted_up() -> None:
    seen = Seen()
    for number in (0, 1, 1):
        seen.view.metrics(step(number), 0.0)
    assert seen.new() == [VersionsTrained(2)]
    assert seen.new() == []
