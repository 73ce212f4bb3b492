from __future__ import annotations

from launch.observe.run_view import RunView
from schemas.records.control import Member, Round, Stop
from schemas.records.status import InHand
from tests.fakes.launch.observed_run import PRODUCER, START, ObservedRun, beat, claim, figures, heartbeat, state, step
from tests.fakes.records.make import UUID
from tests.fakes.records.runs import RUN


def test_a_run_without_records_is_starting() -> None:
    run = ObservedRun()
    snapshot = run.at(3)
    assert (snapshot.learner, snapshot.steps, snapshot.elapsed_s, snapshot.reward) == ("starting", 0, 3, None)
    assert snapshot.claims == 0


def test_the_learners_phase_follows_from_control() -> None:
    run = ObservedRun()
    phases = []
    for record in (
        claim(),
        state(),
        state(members={PRODUCER: Member(requests_partition=0)}),
        state(round=Round(number=1, version=0, mode="keep", phase="pause", members=[PRODUCER])),
        state(round=Round(number=1, version=0, mode="keep", phase="transfer", members=[PRODUCER])),
        state(frontier=0),
        state(frontier=0, sealed_through=0),
        state(frontier=1, sealed_through=0),
        state(frontier=1, stop=Stop(reason="done", version=1, resumable=True, finished=True)),
    ):
        run.put("control", record)
        phases.append(run.at(0).learner)
    assert phases == [
        "claimed the run",
        "waiting for producers",
        "waiting for producers (1 joined)",
        "pausing producers for the weights of version 0",
        "sending the weights of version 0",
        "waiting for the groups of target version 0",
        "training target version 0",
        "waiting for the groups of target version 1",
        "stopped: done",
    ]


def test_a_claim_takes_back_an_earlier_stop() -> None:
    run = ObservedRun()
    run.put("control", state(stop=Stop(reason="interrupted", version=1, resumable=True)))
    run.put("control", claim())
    assert run.view.stop is None


def test_what_a_learner_publishes_that_has_lost_the_run_is_left_out_from_the_claim_on() -> None:
    run = ObservedRun()
    run.put("control", claim(), offset=0)
    run.put("control", state(frontier=3), offset=1)
    run.put("control", claim(), offset=40)
    assert (run.at(0).claims, run.at(0).learner) == (2, "claimed the run")
    run.put(
        "control", state(frontier=4, stop=Stop(reason="no producer", version=4, resumable=True)), offset=41
    )  # of the first one
    run.put("status", beat(9))
    assert (run.at(0).frontier, run.view.stop, run.at(0).beat) == (3, None, None)
    run.put("control", state(incarnation=40, frontier=3), offset=42)
    assert (run.at(0).incarnation, run.at(0).learner) == (40, "waiting for the groups of target version 3")


def test_a_claim_that_is_of_another_run_does_not_count() -> None:
    run = ObservedRun()
    run.put("control", claim(), offset=0)
    run.put("control", claim().model_copy(update={"uuid": "f" * 32}), offset=1)  # both made the topics, the first claim won
    run.put("control", state(frontier=0), offset=2)
    assert (run.at(0).claims, run.at(0).frontier) == (1, 0)


def test_a_run_that_is_looked_at_later_took_from_its_claim_to_its_stop() -> None:
    run = ObservedRun()
    run.view = RunView(RUN)
    assert run.at(0).elapsed_s == 0
    run.put("control", claim(), START + 10)
    assert run.at(25).elapsed_s == 15
    run.put("control", state(stop=Stop(reason="done", version=1, resumable=True)), START + 70)
    assert run.at(500).elapsed_s == 60


def test_steps_give_reward_idle_share_and_the_time_to_go() -> None:
    run = ObservedRun()
    run.put("control", state(frontier=0))
    for number in range(3):
        run.put("metrics", step(number, reward=0.1 * (number + 1)), START + 10 + 2 * number)
    snapshot = run.at(20)
    assert (snapshot.steps, snapshot.last) == (3, 40)
    assert snapshot.reward == 0.1 * 3
    assert snapshot.first_reward == 0.1
    assert snapshot.idle_share == 0.25
    assert snapshot.step_s == 2
    assert snapshot.eta_s == 2 * 37
    run.put("control", state(frontier=3, stop=Stop(reason="x", version=3, resumable=True)))
    assert run.at(20).eta_s is None


def test_the_time_to_go_is_of_this_part_of_a_resumed_run() -> None:
    run = ObservedRun()
    run.put("control", state(frontier=0))
    for number, at in ((0, START - 5000), (1, START + 1), (2, START + 2)):
        run.put("metrics", step(number), at)
    assert run.at(3).eta_s == 37


def test_a_step_that_is_reported_again_after_a_resume_is_counted_once() -> None:
    run = ObservedRun()
    for number in (0, 1, 1):
        run.put("metrics", step(number))
    assert run.at(0).steps == 2


def test_open_versions_show_their_slots_and_who_has_them() -> None:
    run = ObservedRun()
    run.put("control", state(frontier=3, window={3: "id3", 4: "id4"}))
    run.put("status", heartbeat(0))
    assert [(row.version, row.filled, row.holders) for row in run.at(0).window] == [(3, None, {}), (4, None, {})]
    hand = [InHand(kind="rollout", target=version, slot=slot, draw=0, attempt=0) for version, slot in ((3, 0), (3, 1), (4, 0))]
    hand.append(InHand(kind="validation", target=3, slot=2, draw=0, attempt=0))
    run.put("status", heartbeat(0).model_copy(update={"in_hand": hand}))
    run.put("status", beat(**figures()))
    rows = [(row.version, row.unassigned, row.assigned, row.filled, row.holders) for row in run.at(0).window]
    assert rows == [(3, 1, 4, 11, {PRODUCER: 2}), (4, 14, 2, 0, {PRODUCER: 1})]
    (producer,) = run.at(0).producers
    assert (producer.rollouts, producer.validations, producer.in_hand) == ({3: 2, 4: 1}, 1, 4)
    run.put("control", state(frontier=3, window={3: "id3"}, stop=Stop(reason="x", version=3, resumable=True)))
    assert list(run.at(0).window) == []


def test_the_last_beat_shows_how_far_the_dispatcher_is() -> None:
    run = ObservedRun()
    run.put("control", state(frontier=3, sealed_through=2))
    run.put("status", beat(9, **figures()), START + 4)
    run.put("status", beat(10, **{**figures(), "waits_for": ""}), START + 5)
    s = run.at(7)
    assert (s.frontier, s.sealed_through, s.incarnation, s.uuid, s.lead, s.waits_for) == (3, 2, 0, UUID, 1, "")
    assert s.beat is not None and (s.beat.number, s.beat.silent_s) == (10, 2)
    assert (s.counts, s.failures, s.refusals) == ({"reissued": 6, "ignored_status": 2}, {"lost": 4}, {"digest": 3})


def test_beats_of_an_earlier_learner_say_nothing_about_this_one() -> None:
    run = ObservedRun()
    run.put("control", state(frontier=3))
    run.put("status", beat(9, **figures()))
    run.put("control", state(frontier=3, incarnation=40))
    assert (run.at(0).beat, run.at(0).counts) == (None, {})
    run.put("status", beat(1, incarnation=40))
    run.put("status", beat(10, **figures()))  # the earlier one still lives
    shown = run.at(0)
    assert shown.beat is not None and (shown.beat.incarnation, shown.waits_for) == (40, "")
    run.put("control", state(frontier=2, incarnation=0))
    assert run.at(0).frontier == 3
