"""The producer's state machine: events in, commands out; its invariants are asserted after each event."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from producer import events as ev
from producer.core import EngineState, Freeze, ProducerCore
from producer.engine.protocol import Loaded, TransferOffer
from schemas.config.dispatch import RefitConfig
from schemas.identity import Attempt
from schemas.records.control import Member, Round, Stop, TransferGroup
from schemas.records.status import Ack, Failed, FailureKind, Left, ProducerState
from tests.fakes.records import UUID, key, make_claim, make_request, make_state

C = TypeVar("C")


def make_round(number: int = 1, version: int = 0, mode: str = "keep", members: tuple[str, ...] = ("p0",)) -> Round:
    return Round(number=number, version=version, mode=mode, phase="pause", members=list(members))


def transfer(round_: Round) -> Round:
    group = TransferGroup(host="h", port=5, prefix="x", world=len(round_.members) + 1, members=dict(_ranks(round_.members)))
    return round_.model_copy(update={"phase": "transfer", "groups": [group]})


def _ranks(members: list[str]) -> list[tuple[str, int]]:
    return [(name, index + 1) for index, name in enumerate(members)]


class Producer:
    """A core with its commands; `p0` of incarnation 0 unless told otherwise."""

    def __init__(self, capacity: int = 2) -> None:
        self.core = ProducerCore("p0", capacity, RefitConfig(phase_timeout_s=8))
        self.incarnation = 0
        self.offset = 100
        self.commands: list[ev.Command] = []

    def stands(self) -> ProducerState:
        """Its state now."""
        return self.core.view.state

    def on(self, event: ev.Event) -> list[ev.Command]:
        commands = self.core.on(event)
        self.core.validate()
        self.commands += commands
        return commands

    def state(self, member: bool = True, **changes: Any) -> list[ev.Command]:
        self.offset += 1
        members = {"p0": Member(requests_partition=3)} if member else {}
        return self.on(ev.ControlRead(make_state(incarnation=self.incarnation, **{"members": members, **changes}), self.offset))

    def claim(self) -> list[ev.Command]:
        self.offset += 1
        self.incarnation = self.offset
        return self.on(ev.ControlRead(make_claim(), self.offset))

    def request(self, at: Attempt, kind: str = "rollout", **changes: Any) -> list[ev.Command]:
        return self.on(ev.RequestRead(make_request(**{"at": at, "kind": kind, "incarnation": self.incarnation, **changes})))

    def cancel(self, at: Attempt, kind: str = "rollout") -> list[ev.Command]:
        return self.request(at, "cancel", cancels=kind)

    def received(self, version: int, digest: str | None = None, error: str | None = None) -> list[ev.Command]:
        loaded = None if error else Loaded(version, digest or f"w{version}", 0.25)
        return self.on(ev.Received(1, loaded, error, 1.5))

    def refit(self, version: int, number: int = 1) -> None:
        """A whole round that goes well."""
        round_ = make_round(number, version)
        self.state(round=round_)
        self.on(ev.Paused(number))
        self.state(round=transfer(round_))
        self.received(version)
        self.state(frontier=version)


def serving(version: int = 0, capacity: int = 2) -> Producer:
    """A producer that has joined and holds `version`."""
    producer = Producer(capacity)
    producer.state(member=False)
    producer.state()
    producer.refit(version)
    assert producer.stands() is ProducerState.SERVING
    return producer


def of(kind: type[C], commands: list[ev.Command]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def said(commands: list[ev.Command]) -> list[Ack | Failed | Left]:
    return [command.record for command in of(ev.Say, commands)]


def started(commands: list[ev.Command]) -> list[str]:
    return [str(command.request.key) for command in of(ev.Start, commands)]


# --- joining --------------------------------------------------------------------------------------------------------------------


def test_a_newcomer_reports_at_the_first_state_and_once() -> None:
    producer = Producer()
    assert producer.state(member=False) == [ev.SendReport(None)]
    assert producer.state(member=False) == []
    assert producer.state() == [ev.ReadRequests(3)]
    assert producer.state() == []
    assert producer.stands() is ProducerState.JOINING


def test_a_newcomer_that_finds_a_claim_waits_for_its_state() -> None:
    producer = Producer()
    assert producer.claim() == []
    producer.incarnation -= 50
    assert producer.state(member=False) == []  # of an earlier learner
    producer.incarnation += 50
    assert producer.state(member=False) == [ev.SendReport(None)]


def test_a_newcomer_is_not_bound_by_a_stop_that_it_finds() -> None:
    producer = Producer()
    commands = producer.state(member=False, stop=Stop(reason="interrupted", version=3, resumable=True))
    assert of(ev.Exit, commands) == [] and of(ev.SendReport, commands) == []
    producer.claim()
    assert producer.state(member=False) == [ev.SendReport(None)]


def test_a_newcomer_to_a_finished_run_waits_for_more_steps_and_then_leaves() -> None:
    finished = Stop(reason="all steps trained", version=9, resumable=False, finished=True)
    for goes_on in (True, False):
        producer = Producer()
        assert of(ev.Exit, producer.state(member=False, stop=finished)) == []
        if goes_on:
            producer.claim()
            assert producer.state(member=False) == [ev.SendReport(None)]
        commands = producer.on(ev.StartOver("120 s"))
        assert of(ev.Exit, commands) == ([] if goes_on else [ev.Exit(0, "the run has ended: all steps trained")])


def test_a_newcomer_that_finds_no_learner_in_time_fails() -> None:
    producer = Producer()
    producer.claim()
    assert of(ev.Exit, producer.on(ev.StartOver("120 s"))) == [
        ev.Exit(1, "waited 120 s for a learner of the run; is it running?")
    ]


def test_a_run_that_nobody_can_go_on_with_is_left_at_once() -> None:
    commands = Producer().state(member=False, stop=Stop(reason="too few rows", version=0, resumable=False))
    assert of(ev.Exit, commands) == [ev.Exit(1, "the run has ended: too few rows")]


@pytest.mark.parametrize(("how", "code"), [("finished", 0), ("ordered", 0), ("failed", 1)])
def test_a_stop_ends_who_has_joined(how: str, code: int) -> None:
    producer = serving()
    finished = how == "finished"
    commands = producer.state(
        stop=Stop(reason="because", version=3, resumable=not finished, finished=finished, ordered=how == "ordered")
    )
    assert of(ev.Exit, commands) == [ev.Exit(code, "the run has ended: because")]
    assert producer.stands() is ProducerState.LEAVING
    assert producer.request(key(1)) == []


def test_a_refused_producer_leaves_with_the_problems() -> None:
    producer = Producer()
    producer.state(member=False)
    commands = producer.state(member=False, refused={"p0": ["a: learner has 1", "b: learner has 2"], "p1": ["c"]})
    assert of(ev.Exit, commands) == [ev.Exit(2, "refused by the learner:\n  a: learner has 1\n  b: learner has 2")]


def test_each_claim_is_answered_once_with_all_that_is_in_hand() -> None:
    producer = serving()
    producer.request(key(1))
    assert ev.SendReport(producer.offset + 1) in producer.claim()
    assert str(producer.core.view.in_hand[0].key) == str(key(1))
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


def test_who_was_taken_for_lost_says_once_that_it_is_here() -> None:
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
    assert len(producer.core.view.in_hand) == 1
    assert producer.on(ev.Published(("rollout", key(0)))) == []
    assert producer.core.view.in_hand == ()


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
    producer = Producer()
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
def test_a_rollout_that_fails_is_told_with_its_kind(kind: FailureKind) -> None:
    producer = serving()
    producer.request(key(0, 1, 2, 3))
    (failed,) = said(producer.on(ev.RolloutEnded(("rollout", key(0, 1, 2, 3)), kind, "x" * 5000)))
    assert isinstance(failed, Failed)
    assert (failed.failure, failed.request.key, len(failed.reason)) == (kind, key(0, 1, 2, 3), 2000)
    assert producer.core.work == {}


def test_a_cancelled_request_is_aborted_once_and_says_nothing() -> None:
    producer = serving()
    producer.request(key(0))
    assert producer.cancel(key(0)) == [ev.Abort(("rollout", key(0)))]
    assert producer.cancel(key(0)) == []
    assert producer.core.view.in_hand == ()
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
    assert len(producer.core.view.in_hand) == 1


def test_a_validation_ends_with_its_weights() -> None:
    producer = serving()
    producer.request(key(0), "validation", min_version=0)
    producer.refit(1, number=2)
    assert ev.Abort(("validation", key(0))) in producer.commands


# --- rounds ---------------------------------------------------------------------------------------------------------------------


def test_a_round_from_pause_to_the_new_version() -> None:
    producer = serving()
    producer.request(key(1))
    round_ = make_round(2, 1)
    assert producer.state(round=round_) == [ev.Pause(2, True)]
    assert producer.stands() is ProducerState.PAUSED
    assert producer.state(round=round_) == []
    (ack,) = said(producer.on(ev.Paused(2)))
    assert isinstance(ack, Ack) and (ack.phase, ack.round, ack.version, ack.ok) == ("pause", 2, 1, True)
    offer = TransferOffer(version=1, host="h", port=5, prefix="x", nccl_id=None, world=2, rank_offset=1, timeout_s=4.0)
    assert producer.state(round=transfer(round_)) == [ev.Receive(2, offer)]
    assert producer.state(round=transfer(round_)) == []
    (ack,) = said(producer.received(1))
    assert isinstance(ack, Ack)
    assert (ack.phase, ack.digest, ack.probe_gap, ack.seconds) == ("loaded", "w1", 0.25, 1.5)
    assert (producer.core.held, producer.core.view.digest) == (1, "w1")
    assert producer.state(frontier=1) == [ev.Resume()]
    assert producer.stands() is ProducerState.SERVING


def test_a_failed_transfer_is_told_and_the_old_weights_are_served_on() -> None:
    producer = serving()
    round_ = make_round(2, 1)
    producer.state(round=round_)
    producer.on(ev.Paused(2))
    producer.state(round=transfer(round_))
    (ack,) = said(producer.received(1, error="reset by peer"))
    assert isinstance(ack, Ack) and (ack.ok, ack.error, ack.digest) == (False, "reset by peer", None)
    assert producer.core.held == 0
    assert producer.state(frontier=1) == [ev.Resume()]


def test_who_is_no_member_goes_on_as_before() -> None:
    producer = serving()
    assert producer.state(round=make_round(2, 1, members=("p1",))) == []
    assert producer.stands() is ProducerState.SERVING


def test_who_is_left_out_in_the_middle_goes_on_with_what_it_has() -> None:
    producer = serving()
    producer.state(round=make_round(2, 1, members=("p0", "p1")))
    producer.on(ev.Paused(2))
    assert producer.state(round=make_round(2, 1, members=("p1",))) == [ev.Resume()]


def test_caches_are_dropped_as_configured() -> None:
    producer = serving()
    producer.core.refit = RefitConfig(recompute_kv_cache_after_weight_updates=False)
    assert producer.state(round=make_round(2, 1)) == [ev.Pause(2, False)]


def test_the_next_try_of_a_round_begins_with_its_own_pause_ack() -> None:
    producer = serving()
    producer.state(round=make_round(2, 1))
    producer.on(ev.Paused(2))
    (ack,) = said(producer.state(round=make_round(3, 1)))
    assert isinstance(ack, Ack) and (ack.phase, ack.round) == ("pause", 3)


def test_running_requests_are_kept_and_new_ones_queue_in_a_frozen_engine() -> None:
    producer = serving()
    producer.request(key(1))
    producer.state(round=make_round(2, 1))
    assert started(producer.request(key(1, 1))) == [str(key(1, 1))]
    assert of(ev.Abort, producer.commands) == []


def test_draining_ends_what_runs_and_starts_nothing_before_the_round_is_over() -> None:
    producer = serving()
    producer.request(key(1))
    round_ = make_round(2, 1, mode="drain")
    assert producer.state(round=round_) == []
    assert producer.stands() is ProducerState.PAUSED
    assert producer.request(key(1, 1)) == []
    assert producer.on(ev.Published(("rollout", key(1)))) == [ev.Pause(2, True)]
    assert producer.request(key(1, 2)) == []
    producer.on(ev.Paused(2))
    producer.state(round=transfer(round_))
    assert started(producer.received(1)) == []
    assert started(producer.state(frontier=1)) == [str(key(1, 1)), str(key(1, 2))]


def test_draining_with_nothing_to_drain_pauses_at_once() -> None:
    assert serving().state(round=make_round(2, 1, mode="drain")) == [ev.Pause(2, True)]


def test_draining_is_ended_by_the_end_of_its_round() -> None:
    producer = serving()
    producer.request(key(1))
    producer.state(round=make_round(2, 1, mode="drain"))
    producer.request(key(1, 1))
    assert started(producer.state(frontier=1)) == [str(key(1, 1))]


# --- a claim ends whatever round is on ------------------------------------------------------------------------------------------


def test_a_claim_resumes_who_is_paused() -> None:
    producer = serving()
    producer.state(round=make_round(2, 1))
    producer.on(ev.Paused(2))
    assert producer.claim() == [ev.SendReport(producer.incarnation), ev.Resume()]
    assert producer.core.freeze is Freeze.NONE


@pytest.mark.parametrize("loaded", [True, False])
def test_a_claim_during_a_transfer_leaves_the_engine_alone_until_it_is_done(loaded: bool) -> None:
    producer = serving()
    round_ = make_round(2, 1)
    producer.state(round=round_)
    producer.on(ev.Paused(2))
    producer.state(round=transfer(round_))
    assert producer.claim() == [ev.SendReport(producer.incarnation)]
    commands = producer.received(1, error=None if loaded else "nobody sends")
    assert commands == [ev.Resume()]  # no ack: that round is gone
    assert producer.core.held == (1 if loaded else 0)


def test_a_claim_while_the_engine_is_stopping_resumes_it_afterwards() -> None:
    producer = serving()
    producer.state(round=make_round(2, 1))
    assert of(ev.Resume, producer.claim()) == []
    assert producer.on(ev.Paused(2)) == [ev.Resume()]


def test_the_new_learners_round_waits_for_the_engine_and_is_not_taken_for_the_old_one() -> None:
    """Rounds are numbered from 1 again by each learner, so only the order of events tells them apart."""
    producer = serving()
    old = make_round(1, 1)
    producer.state(round=old)
    producer.on(ev.Paused(1))
    producer.state(round=transfer(old))
    producer.claim()
    producer.state()
    assert producer.state(round=make_round(1, 1)) == []
    assert producer.core.engine is EngineState.RECEIVING
    (ack,) = said(producer.received(1, digest="old weights"))
    assert isinstance(ack, Ack) and (ack.phase, ack.incarnation) == ("pause", producer.incarnation)


def test_a_drain_that_finds_the_engine_frozen_lets_it_move_first() -> None:
    producer = serving()
    producer.request(key(1))
    producer.state(round=make_round(2, 1))
    producer.claim()
    producer.state(round=make_round(1, 1, mode="drain"))
    assert producer.on(ev.Paused(2)) == [ev.Resume()]
    assert producer.on(ev.Published(("rollout", key(1)))) == [ev.Pause(1, True)]


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


def test_who_has_not_joined_leaves_without_a_word() -> None:
    commands = Producer().on(ev.Leave("SIGTERM", 0))
    assert said(commands) == [] and of(ev.Exit, commands) == [ev.Exit(0, "SIGTERM")]


def test_a_dead_engine_ends_the_producer_with_a_failure() -> None:
    commands = serving().on(ev.Leave("the engine died: out of memory", 1))
    assert of(ev.Exit, commands) == [ev.Exit(1, "the engine died: out of memory")]


def test_the_view_is_a_snapshot() -> None:
    producer = serving()
    before = producer.core.view
    producer.request(key(0))
    assert before.in_hand == () and len(producer.core.view.in_hand) == 1
    assert producer.core.view.uuid == UUID
