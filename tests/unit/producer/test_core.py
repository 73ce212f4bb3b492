"""The producer's state machine: joining, requests, leaving."""

from __future__ import annotations

import pytest

from producer import events as ev
from schemas.records.control import Stop
from schemas.records.status import Failed, FailureKind, Left, ProducerState
from tests.fakes.producer.producing import Driver, make_round, of, said, serving, started
from tests.fakes.records.make import UUID, key, make_claim

# --- joining --------------------------------------------------------------------------------------------------------------------


def test_a_newcomer_reports_at_the_first_state_and_once() -> None:
    producer = Driver()
    assert producer.state(member=False) == [ev.SendReport(None)]
    assert producer.state(member=False) == []
    assert producer.state() == [ev.ReadRequests(3)]
    assert producer.state() == []
    assert producer.stands() is ProducerState.JOINING


def test_a_newcomer_that_finds_a_claim_waits_for_its_state() -> None:
    producer = Driver()
    assert producer.claim() == []
    producer.incarnation -= 50
    assert producer.state(member=False) == []  # of an earlier learner
    producer.incarnation += 50
    assert producer.state(member=False) == [ev.SendReport(None)]


def test_a_newcomer_is_not_bound_by_a_stop_that_it_finds() -> None:
    producer = Driver()
    commands = producer.state(member=False, stop=Stop(reason="interrupted", version=3, resumable=True))
    assert of(ev.Exit, commands) == [] and of(ev.SendReport, commands) == []
    producer.claim()
    assert producer.state(member=False) == [ev.SendReport(None)]


def test_a_newcomer_to_a_finished_run_waits_for_more_steps_and_then_leaves() -> None:
    finished = Stop(reason="all steps trained", version=9, resumable=False, finished=True)
    for resumed in (True, False):
        producer = Driver()
        assert of(ev.Exit, producer.state(member=False, stop=finished)) == []
        if resumed:
            producer.claim()
            assert producer.state(member=False) == [ev.SendReport(None)]
        commands = producer.on(ev.StartOver("120 s"))
        assert of(ev.Exit, commands) == ([] if resumed else [ev.Exit(0, "the run has ended: all steps trained")])


def test_a_newcomer_that_finds_no_learner_in_time_fails() -> None:
    producer = Driver()
    producer.claim()
    assert of(ev.Exit, producer.on(ev.StartOver("120 s"))) == [
        ev.Exit(1, "waited 120 s for a learner of the run; is it running?")
    ]


def test_a_run_that_nobody_can_resume_is_left_at_once() -> None:
    commands = Driver().state(member=False, stop=Stop(reason="too few rows", version=0, resumable=False))
    assert of(ev.Exit, commands) == [ev.Exit(1, "the run has ended: too few rows")]


@pytest.mark.parametrize(("how", "code"), [("finished", 0), ("ordered", 0), ("failed", 1)])
def test_a_stop_ends_a_producer_that_has_joined(how: str, code: int) -> None:
    producer = serving()
    finished = how == "finished"
    commands = producer.state(
        stop=Stop(reason="because", version=3, resumable=not finished, finished=finished, ordered=how == "ordered")
    )
    assert of(ev.Exit, commands) == [ev.Exit(code, "the run has ended: because")]
    assert producer.stands() is ProducerState.LEAVING
    assert producer.request(key(1)) == []


def test_a_refused_producer_leaves_with_the_problems() -> None:
    producer = Driver()
    producer.state(member=False)
    commands = producer.state(member=False, refused={"p0": ["a: learner has 1", "b: learner has 2"], "p1": ["c"]})
    assert of(ev.Exit, commands) == [ev.Exit(2, "refused by the learner:\n  a: learner has 1\n  b: learner has 2")]


def test_each_claim_is_answered_once_with_all_that_is_in_hand() -> None:
    producer = serving()
    producer.request(key(1))
    assert ev.SendReport(producer.offset + 1) in producer.claim()
    assert str(producer.core.snapshot.in_hand[0].key) == str(key(1))
    older = ev.ControlRead(make_claim(), producer.offset - 1)
    assert producer.on(older) == []


def test_records_of_another_run_or_an_earlier_learner_do_not_exist() -> None:
    producer = serving()
    producer.claim()
    producer.incarnation -= 1
    assert producer.state(stop=Stop(reason="because", version=3, resumable=True)) == []
    producer.incarnation += 1
    assert producer.state(uuid="f" * 32, stop=Stop(reason="because", version=3, resumable=True)) == []
    assert not producer.core.exited


def test_a_producer_taken_for_lost_reports_once_that_it_is_here() -> None:
    producer = serving()
    producer.request(key(1))
    assert producer.state(member=False) == [ev.SendReport(0)]
    assert producer.state(member=False) == []
    assert producer.state() == []
    assert producer.state(member=False) == [ev.SendReport(0)]


def test_a_new_learner_that_does_not_know_it_yet_has_not_lost_it() -> None:
    producer = serving()
    producer.claim()
    assert of(ev.SendReport, producer.state(member=False)) == []


# --- requests -------------------------------------------------------------------------------------------------------------------


def test_a_request_is_started_and_published() -> None:
    producer = serving()
    assert started(producer.request(key(0))) == ["v00000000/s0000/d0/a0"]
    assert len(producer.core.snapshot.in_hand) == 1
    assert producer.on(ev.Published(("rollout", key(0)))) == []
    assert producer.core.snapshot.in_hand == ()


def test_requests_for_others_of_other_runs_or_of_earlier_learners_are_not_for_it() -> None:
    producer = serving()
    producer.claim()
    assert producer.request(key(0), producer="p1") == []
    assert producer.request(key(0), uuid="f" * 32) == []
    assert producer.request(key(0), incarnation=producer.incarnation - 1) == []
    assert producer.core.work == {}


def test_a_request_that_is_read_twice_is_done_once() -> None:
    producer = serving()
    producer.request(key(0))
    assert producer.request(key(0)) == []


def test_a_request_is_started_only_with_weights_that_are_new_enough() -> None:
    producer = serving(version=3)
    assert started(producer.request(key(5), min_version=4)) == []
    producer.refit(4, number=2)
    assert started(producer.commands) == ["v00000005/s0000/d0/a0"]


def test_no_weights_no_work() -> None:
    producer = Driver()
    producer.state(member=False)
    producer.state()
    assert started(producer.request(key(0), min_version=0)) == []


def test_weights_newer_than_the_target_do_not_work_for_it() -> None:
    assert started(serving(version=3).request(key(2), min_version=1)) == []


def test_one_more_than_the_capacity_and_no_more() -> None:
    producer = serving(capacity=2)
    for slot in range(5):
        producer.request(key(0, slot))
    assert started(producer.commands) == [str(key(0, slot)) for slot in range(3)]
    assert started(producer.on(ev.Published(("rollout", key(0, 1))))) == [str(key(0, 3))]


def test_validation_goes_first_then_the_lowest_target() -> None:
    producer = serving(capacity=0)
    producer.request(key(0, 9))
    for at, kind in ((key(1, 0), "rollout"), (key(0, 2), "rollout"), (key(0, 5), "validation")):
        producer.request(at, kind, min_version=0)
    order = [str(key(0, 9))]
    for _ in range(3):
        last = of(ev.Start, producer.commands)[-1].request
        order += started(producer.on(ev.Published((last.kind, last.key))))  # type: ignore[arg-type]
    assert order == [str(key(0, 9)), str(key(0, 5)), str(key(0, 2)), str(key(1, 0))]


def test_rollout_and_validation_of_one_key_are_two_requests() -> None:
    producer = serving()
    producer.request(key(0))
    assert len(of(ev.Start, producer.request(key(0), "validation", min_version=0))) == 1


@pytest.mark.parametrize("kind", FailureKind)
def test_a_failed_rollout_is_reported_with_its_kind(kind: FailureKind) -> None:
    producer = serving()
    producer.request(key(0, 1, 2, 3))
    (failed,) = said(producer.on(ev.RolloutEnded(("rollout", key(0, 1, 2, 3)), kind, "x" * 5000)))
    assert isinstance(failed, Failed)
    assert (failed.failure, failed.request.key, len(failed.reason)) == (kind, key(0, 1, 2, 3), 2000)
    assert producer.core.work == {}


def test_a_cancelled_request_is_aborted_once_and_not_reported() -> None:
    producer = serving()
    producer.request(key(0))
    assert producer.cancel(key(0)) == [ev.Abort(("rollout", key(0)))]
    assert producer.cancel(key(0)) == []
    assert producer.core.snapshot.in_hand == ()
    assert producer.on(ev.RolloutEnded(("rollout", key(0)), FailureKind.ROLLOUT, "failed in the meantime")) == []
    assert producer.core.work == {}


def test_a_cancel_takes_back_what_has_not_started_and_nothing_else() -> None:
    producer = serving()
    producer.request(key(5), min_version=4)
    producer.request(key(0), "validation", min_version=0)
    assert producer.cancel(key(5)) == []
    assert producer.cancel(key(0)) == []
    assert producer.cancel(key(9)) == []
    assert list(producer.core.work) == [("validation", key(0))]


def test_work_on_sealed_versions_is_void() -> None:
    producer = serving()
    producer.request(key(0))
    producer.request(key(1))
    assert producer.state(sealed_through=0) == [ev.Abort(("rollout", key(0)))]
    assert started(producer.request(key(0, 1))) == []
    assert len(producer.core.snapshot.in_hand) == 1


def test_a_validation_ends_with_its_weights() -> None:
    producer = serving()
    producer.request(key(0), "validation", min_version=0)
    producer.refit(1, number=2)
    assert ev.Abort(("validation", key(0))) in producer.commands


# --- leaving --------------------------------------------------------------------------------------------------------------------


def test_leaving_hands_back_what_is_not_finished() -> None:
    producer = serving()
    producer.request(key(0))
    producer.request(key(5), min_version=4)
    commands = producer.on(ev.Leave("SIGTERM", 0))
    (left,) = said(commands)
    assert isinstance(left, Left)
    assert [item.key for item in left.unfinished] == [key(0), key(5)]
    assert of(ev.Abort, commands) == [ev.Abort(("rollout", key(0)))]
    assert commands[-1] == ev.Exit(0, "SIGTERM")
    assert producer.stands() is ProducerState.LEAVING


def test_a_second_signal_and_all_that_follows_change_nothing() -> None:
    producer = serving()
    producer.on(ev.Leave("SIGTERM", 0))
    assert producer.on(ev.Leave("SIGINT", 0)) == []
    assert producer.state(round=make_round(2, 1)) == []
    assert producer.claim() == []


def test_a_producer_that_has_not_joined_leaves_without_a_record() -> None:
    commands = Driver().on(ev.Leave("SIGTERM", 0))
    assert said(commands) == [] and of(ev.Exit, commands) == [ev.Exit(0, "SIGTERM")]


def test_a_dead_engine_ends_the_producer_with_a_failure() -> None:
    commands = serving().on(ev.Leave("the engine died: out of memory", 1))
    assert of(ev.Exit, commands) == [ev.Exit(1, "the engine died: out of memory")]


def test_a_snapshot_does_not_change() -> None:
    producer = serving()
    before = producer.core.snapshot
    producer.request(key(0))
    assert before.in_hand == () and len(producer.core.snapshot.in_hand) == 1
    assert producer.core.snapshot.uuid == UUID
