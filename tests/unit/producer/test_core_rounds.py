"""The producer's state machine in a round, and when a claim ends the round."""

from __future__ import annotations

import pytest

from producer import events as ev
from producer.core import EngineState, Freeze
from producer.engine.protocol import TransferOffer
from schemas.config.dispatch import RefitConfig
from schemas.records.status import Ack, ProducerState
from schemas.weights.transports.protocol import Rendezvous
from tests.fakes.producer.producing import make_round, of, said, serving, started, transfer
from tests.fakes.records.make import key

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
    offer = TransferOffer(version=1, at=Rendezvous("h", 5, "x"), world=2, rank_offset=1, timeout_s=4.0)
    assert producer.state(round=transfer(round_)) == [ev.Receive(2, offer)]
    assert producer.state(round=transfer(round_)) == []
    (ack,) = said(producer.received(1))
    assert isinstance(ack, Ack)
    assert (ack.phase, ack.digest, ack.probe_gap, ack.seconds) == ("loaded", "w1", 0.25, 1.5)
    assert (producer.core.held, producer.core.snapshot.digest) == (1, "w1")
    assert producer.state(frontier=1) == [ev.Resume()]
    assert producer.stands() is ProducerState.SERVING


def test_a_failed_transfer_is_reported_and_the_old_weights_stay_in_use() -> None:
    producer = serving()
    round_ = make_round(2, 1)
    producer.state(round=round_)
    producer.on(ev.Paused(2))
    producer.state(round=transfer(round_))
    (ack,) = said(producer.received(1, error="reset by peer"))
    assert isinstance(ack, Ack) and (ack.ok, ack.error, ack.digest) == (False, "reset by peer", None)
    assert producer.core.held == 0
    assert producer.state(frontier=1) == [ev.Resume()]


def test_a_producer_that_is_no_member_continues_as_before() -> None:
    producer = serving()
    assert producer.state(round=make_round(2, 1, members=("p1",))) == []
    assert producer.stands() is ProducerState.SERVING


def test_a_producer_left_out_in_the_middle_resumes_with_its_old_weights() -> None:
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


def test_a_claim_resumes_a_paused_producer() -> None:
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
