from __future__ import annotations

from launch.observe.producers_view import FORGET_S
from schemas.records.control import Member, Stop
from schemas.records.status import Ack, Beat, Failed, FailureKind, InHand, Left, ProducerState
from tests.fakes.launch.observed_run import PRODUCER, START, ObservedRun, heartbeat, report, state
from tests.fakes.records.make import UUID


def test_a_producers_rate_is_of_the_last_seconds() -> None:
    run = ObservedRun()
    run.put("status", report(), START)
    for second in range(30):
        run.put("status", heartbeat(tokens=second * 10 if second < 19 else 190 + (second - 19) * 100), START + second)
    (row,) = run.at(29).producers
    assert (row.name, row.state, row.version, row.in_hand, row.capacity) == (PRODUCER, "serving", 3, 2, 8)
    assert row.tokens_per_s == 100
    assert row.silent_s == 0
    (later,) = run.at(60).producers
    assert (later.tokens_per_s, later.silent_s) == (0, 31)


def test_a_clock_elsewhere_never_makes_an_age_negative() -> None:
    run = ObservedRun()
    run.put("status", heartbeat(0), START + 100)
    assert run.at(1).producers[0].silent_s == 0


def test_members_that_give_no_sign_are_shown_as_silent_until_the_end() -> None:
    run = ObservedRun()
    run.put("control", state(members={PRODUCER: Member(requests_partition=0, held=3)}))
    (row,) = run.at(0).producers
    assert (row.name, row.state, row.version) == (PRODUCER, "silent", 3)
    end = Stop(reason="done", version=1, resumable=True)
    run.put("control", state(members={PRODUCER: Member(requests_partition=0, held=3)}, stop=end))
    assert list(run.at(0).producers) == []


def test_a_producer_that_left_is_gone_and_failures_are_counted() -> None:
    run = ObservedRun()
    run.put("status", report())
    failed = InHand(kind="rollout", target=1, slot=0, draw=0, attempt=0)
    run.put("status", Failed(uuid=UUID, producer=PRODUCER, request=failed, failure=FailureKind.ROLLOUT, reason="x"))
    run.put("status", Beat(uuid=UUID, incarnation=0, number=1))
    run.put("status", Left(uuid=UUID, producer=PRODUCER, reason="SIGTERM"))
    snapshot = run.at(1)
    assert (list(snapshot.producers), snapshot.failed) == ([], 1)


def test_a_member_that_drains_is_shown_so() -> None:
    run = ObservedRun()
    run.put("status", heartbeat(0))
    for draining, word in ((False, "serving"), (True, "draining")):
        run.put("control", state(members={PRODUCER: Member(requests_partition=0, held=3, draining=draining)}))
        (row,) = run.at(0).producers
        assert (row.state, row.member, run.at(0).members) == (word, True, (PRODUCER,))
    run.put("status", heartbeat(0, ProducerState.LEAVING))
    assert run.at(0).producers[0].state == "leaving"


def test_a_producer_that_is_no_member_and_long_silent_is_left_out() -> None:
    run = ObservedRun()
    run.put("control", state(members={PRODUCER: Member(requests_partition=0)}))
    run.put("status", heartbeat(0))
    assert len(run.at(FORGET_S + 1).producers) == 1
    run.put("control", state())
    assert (len(run.at(FORGET_S - 1).producers), len(run.at(FORGET_S + 1).producers)) == (1, 0)


def test_every_record_that_a_producer_writes_shows_that_it_is_there() -> None:
    run = ObservedRun()
    run.put("status", heartbeat(0))
    ack = Ack(uuid=UUID, producer=PRODUCER, incarnation=0, round=1, phase="pause", version=0)
    run.put("status", ack, START + 3)
    assert run.at(5).producers[0].silent_s == 2
    run.put("status", ack.model_copy(update={"producer": "unknown"}), START + 3)
    assert len(run.at(5).producers) == 1
