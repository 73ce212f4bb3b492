from __future__ import annotations

import pytest

from launch.cli.operator_requests import AlreadyAsked, DrainRequest, Fulfilled, PendingRequest, StopRequest, WriteRequest
from launch.observe.run_view import RunSnapshot, RunView
from schemas.errors import ConfigError, WeirError
from schemas.records.control import Claim, Member, State, Stop
from schemas.records.status import Beat
from tests.fakes.records.make import UUID, make_claim, make_heartbeat, make_state
from tests.fakes.records.runs import RUN

SILENCE_S = 15.0
LEASE_BEATS = 4


class Run:
    """A run as its topics show it, and a request on its way to it."""

    def __init__(self, request: StopRequest | DrainRequest, *records: Claim | State) -> None:
        self.view = RunView(RUN)
        self.pending = PendingRequest(request, "runs/x", SILENCE_S, LEASE_BEATS, 0.0)
        for record in records:
            self.view.control(record, 0.0, 0)

    def beat(self, number: int, incarnation: int = 0) -> None:
        self.view.status(Beat(uuid=UUID, incarnation=incarnation, number=number), 0.0)

    def claim(self, incarnation: int) -> None:
        self.view.control(make_claim(), 0.0, incarnation)

    def snapshot(self) -> RunSnapshot:
        return self.view.snapshot(100.0)

    def see(self, now: float = 0.0) -> object:
        return self.pending.see(self.snapshot(), now)


def members(*names: str, draining: str | None = None, stop: Stop | None = None, incarnation: int = 0) -> State:
    found = {name: Member(requests_partition=0, held=0, draining=name == draining) for name in names}
    return make_state(members=found, last_version=40, stop=stop, incarnation=incarnation)


def ended(reason: str = "interrupted", *, finished: bool = False) -> State:
    return members(stop=Stop(reason=reason, version=7, resumable=not finished, finished=finished))


def test_a_stop_is_written_once_beats_continue_and_is_done_when_control_shows_it() -> None:
    run = Run(StopRequest(), members("p0"))
    run.beat(5)
    assert [run.see(0.0), run.see(0.5)] == [None, None]  # the beat may be an old one
    run.beat(6)
    assert run.see(1.0) == WriteRequest()
    run.beat(7)
    assert run.see(2.0) is None
    run.view.control(ended("stopped by a@b"), 0.0, 1)
    assert run.see(3.0) == Fulfilled(f"run {RUN} has stopped after 7 of 40 steps: stopped by a@b")


def test_a_run_that_has_ended_needs_no_stop() -> None:
    for state, word in ((ended(), "has stopped"), (ended(finished=True), "has finished")):
        run = Run(StopRequest(), state)
        done = run.see()
        assert isinstance(done, Fulfilled) and word in done.message
        assert not run.pending.written


def test_a_claim_after_a_stop_makes_it_a_running_one() -> None:
    run = Run(StopRequest(), ended(), make_claim())
    assert run.see() is None


def test_without_beats_nothing_is_written_and_the_command_to_resume_is_named() -> None:
    run = Run(StopRequest(), members("p0"))
    run.beat(5)
    assert run.see(0.0) is None
    assert run.see(SILENCE_S) is None
    with pytest.raises(WeirError, match=r"no learner of run .* \(the last one is 1:40 old\).*--resume runs/x"):
        run.see(SILENCE_S + 0.1)
    assert not run.pending.written


def test_a_learner_that_dies_before_it_obeys_is_noticed() -> None:
    run = Run(StopRequest(), members("p0"))
    run.see(0.0)
    run.beat(1)
    assert run.see(1.0) == WriteRequest()
    with pytest.raises(WeirError, match="did not obey"):
        run.see(1.1 + SILENCE_S)


@pytest.mark.parametrize(("records", "words"), [((), "no learner has claimed"), ((make_claim(),), "published no state yet")])
def test_a_run_without_a_control_state_cannot_be_asked_for_anything(records: tuple[Claim, ...], words: str) -> None:
    with pytest.raises(WeirError, match=words):
        Run(StopRequest(), *records).see()


def test_a_drain_is_done_when_the_producer_is_no_member_any_more() -> None:
    run = Run(DrainRequest("p1"), members("p0", "p1"))
    assert run.see(0.0) is None
    run.beat(1)
    assert run.see(1.0) == WriteRequest()
    run.view.control(members("p0", "p1", draining="p1"), 0.0, 1)
    run.beat(2)
    assert run.see(2.0) is None
    run.view.control(members("p0"), 0.0, 1)
    run.beat(LEASE_BEATS + 1)
    assert run.see(3.0) == Fulfilled(f"producer p1 has left run {RUN}; members: p0")


def test_a_producer_that_drains_already_is_only_waited_for() -> None:
    run = Run(DrainRequest("p1"), members("p0", "p1", draining="p1"))
    run.view.status(make_heartbeat("p1"), 99.0)
    run.see(0.0)
    run.beat(1)
    assert run.see(1.0) == AlreadyAsked()
    assert run.pending.written
    assert DrainRequest("p1").progress(run.snapshot()) == "producer p1 to leave (draining, 0 requests in hand)"


def test_a_producer_that_is_no_member_is_wrong_input_with_the_nearest_name() -> None:
    run = Run(DrainRequest("producer-0-abce"), members("producer-0-abcd", "worker-7"))
    run.beat(LEASE_BEATS + 1)
    with pytest.raises(ConfigError, match=r"did you mean producer-0-abcd.*members: producer-0-abcd, worker-7"):
        run.see()
    nobody = Run(DrainRequest("p0"), members())
    nobody.beat(LEASE_BEATS + 1)
    with pytest.raises(ConfigError, match="members: none"):
        nobody.see()


def test_a_drain_ends_with_the_run() -> None:
    run = Run(DrainRequest("p0"), members("p0"))
    run.see()
    run.view.control(ended("no producer"), 0.0, 1)
    with pytest.raises(WeirError, match=r"has stopped.*no producer"):
        run.see()


# --- a learner that is started again meanwhile ------------------------------------------------------------------------------


def test_a_stop_that_the_next_learner_never_hears_of_is_written_again() -> None:
    run = Run(StopRequest(), members("p0"))
    run.see(0.0)
    run.beat(6)
    assert run.see(1.0) == WriteRequest()
    run.claim(40)
    run.beat(7)  # of the first learner, which is over
    assert run.see(2.0) is None
    assert not run.pending.written
    run.beat(1, incarnation=40)
    assert run.see(3.0) == WriteRequest()


def test_a_claim_is_a_sign_of_life() -> None:
    run = Run(StopRequest(), members("p0"))
    run.see(0.0)
    run.claim(40)
    assert run.see(SILENCE_S) is None
    assert run.see(2 * SILENCE_S) is None
    with pytest.raises(WeirError, match=r"no learner .* or it is being started again.* there is nobody to stop"):
        run.see(2 * SILENCE_S + 0.1)


def test_a_drain_is_asked_again_of_the_next_learner_once_that_knows_the_producer() -> None:
    run = Run(DrainRequest("p1"), members("p0", "p1"))
    run.see(0.0)
    run.beat(LEASE_BEATS + 1)
    assert run.see(1.0) == WriteRequest()
    run.claim(40)
    assert run.see(2.0) is None
    run.view.control(members(incarnation=40), 0.0, 41)  # no producer has answered yet
    run.beat(1, incarnation=40)
    assert run.see(3.0) is None
    assert "only just claimed the run; the learner was not asked yet" in run.pending.outlook(run.snapshot())
    run.view.control(members("p1", incarnation=40), 0.0, 42)
    run.beat(2, incarnation=40)
    assert run.see(4.0) == WriteRequest()
    run.view.control(members(incarnation=40), 0.0, 43)
    run.beat(LEASE_BEATS + 1, incarnation=40)
    assert run.see(5.0) == Fulfilled(f"producer p1 has left run {RUN}; members: none")


def test_a_producer_that_is_gone_when_the_next_learner_has_heard_all_has_left() -> None:
    run = Run(DrainRequest("p1"), members("p0", "p1"))
    run.see(0.0)
    run.claim(40)
    run.view.control(members("p0", incarnation=40), 0.0, 41)
    for number in range(1, LEASE_BEATS + 1):
        run.beat(number, incarnation=40)
        assert run.see(float(number)) is None
    run.beat(LEASE_BEATS + 1, incarnation=40)
    assert run.see(9.0) == Fulfilled(f"producer p1 has left run {RUN}; members: p0")


def test_a_producer_is_not_unknown_before_the_learner_has_heard_all() -> None:
    run = Run(DrainRequest("p0"), members())
    run.beat(1)
    assert run.see(0.0) is None
    run.view.control(members("p0"), 0.0, 1)
    run.beat(2)
    assert run.see(1.0) == WriteRequest()


def test_what_is_waited_for_includes_whether_the_learner_was_asked() -> None:
    run = Run(StopRequest(), members("p0"))
    run.see(0.0)
    assert run.pending.outlook(run.snapshot()).endswith("; the learner was not asked yet")
    run.beat(1)
    run.see(1.0)
    assert run.pending.outlook(run.snapshot()).endswith("; the learner was asked and may still do it")
