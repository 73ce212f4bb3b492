from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from broker_config.topics import Topics
from launch.cli.run_status import as_json
from launch.observe.details import render_details
from launch.observe.display import LiveTable, PlainLines, make_display, render, sparkline
from launch.observe.producers_view import FORGET_S
from launch.observe.view import RunView, Snapshot
from launch.observe.watch import feed
from schemas.records.control import Claim, DatasetFacts, Member, Round, State, Stop
from schemas.records.json_record import JsonRecord
from schemas.records.metrics import StepMetrics
from schemas.records.status import Ack, Beat, Failed, FailureKind, Heartbeat, InHand, Left, OpenVersion, ProducerState, Report
from tests.fakes.records import UUID
from tests.fakes.runs import RUN

START = 1000.0
PRODUCER = "producer-0-abcd1234"
TOPICS = Topics(RUN)


class Run:
    """A view fed through the topics' own decoders."""

    def __init__(self) -> None:
        self.view = RunView(RUN, START)

    def put(self, topic: str, record: JsonRecord, at: float = START, offset: int = 0) -> None:
        feed(self.view, TOPICS, f"{RUN}.{topic}", record.to_bytes(), at, offset)

    def at(self, seconds: float) -> Snapshot:
        return self.view.snapshot(START + seconds)


def claim() -> Claim:
    return Claim(uuid=UUID, host="here", pid=1, config_digest="c0")


def state(**values: object) -> State:
    return State.model_validate({"uuid": UUID, "incarnation": 0, "config_digest": "c0", "last_version": 40, **values})


def heartbeat(tokens: int, state: ProducerState = ProducerState.SERVING, in_hand: int = 2) -> Heartbeat:
    hand = [InHand(kind="rollout", target=1, slot=slot, draw=0, attempt=0) for slot in range(in_hand)]
    return Heartbeat(uuid=UUID, producer=PRODUCER, state=state, held=3, in_hand=hand, engine_tokens=tokens, capacity=8)


def report() -> Report:
    facts = DatasetFacts(rows=10, digest="d")
    return Report(
        uuid=UUID,
        producer=PRODUCER,
        host="here",
        pid=2,
        engine_world_size=1,
        state=ProducerState.JOINING,
        capacity=8,
        plan_digest="p",
        dataset=facts,
        agreed={},
        digests={},
    )


def step(number: int, reward: float = 0.5, waited: float = 1.0, whole: float = 4.0) -> StepMetrics:
    values = {
        "train/reward": reward,
        "train/loss": 0.01,
        "train/avg_trajectory_age": 0.25,
        "performance/tokens_per_s": 1234.0,
        "timing/train/total_step_time": whole,
        "timing/train/exposed_generation": waited,
    }
    return StepMetrics(uuid=UUID, incarnation=0, step=number, seal_offset=9, config_digest="c0", metrics=values)


def test_a_run_without_records_is_starting() -> None:
    run = Run()
    snapshot = run.at(3)
    assert (snapshot.learner, snapshot.steps, snapshot.elapsed_s, snapshot.reward) == ("starting", 0, 3, None)
    assert snapshot.claims == 0


def test_the_learners_phase_follows_from_control() -> None:
    run = Run()
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
    run = Run()
    run.put("control", state(stop=Stop(reason="interrupted", version=1, resumable=True)))
    run.put("control", claim())
    assert run.view.stop is None


def test_what_a_learner_tells_that_has_lost_the_run_is_left_out_from_the_claim_on() -> None:
    run = Run()
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
    run = Run()
    run.put("control", claim(), offset=0)
    run.put("control", claim().model_copy(update={"uuid": "f" * 32}), offset=1)  # both made the topics, the first claim won
    run.put("control", state(frontier=0), offset=2)
    assert (run.at(0).claims, run.at(0).frontier) == (1, 0)


def test_a_producers_rate_is_of_the_last_seconds() -> None:
    run = Run()
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
    run = Run()
    run.put("status", heartbeat(0), START + 100)
    assert run.at(1).producers[0].silent_s == 0


def test_a_run_that_is_looked_at_later_took_from_its_claim_to_its_stop() -> None:
    run = Run()
    run.view = RunView(RUN)
    assert run.at(0).elapsed_s == 0
    run.put("control", claim(), START + 10)
    assert run.at(25).elapsed_s == 15
    run.put("control", state(stop=Stop(reason="done", version=1, resumable=True)), START + 70)
    assert run.at(500).elapsed_s == 60


def test_members_that_give_no_sign_are_shown_as_silent_until_the_end() -> None:
    run = Run()
    run.put("control", state(members={PRODUCER: Member(requests_partition=0, held=3)}))
    (row,) = run.at(0).producers
    assert (row.name, row.state, row.version) == (PRODUCER, "silent", 3)
    end = Stop(reason="done", version=1, resumable=True)
    run.put("control", state(members={PRODUCER: Member(requests_partition=0, held=3)}, stop=end))
    assert list(run.at(0).producers) == []


def test_who_left_is_gone_and_failures_are_counted() -> None:
    run = Run()
    run.put("status", report())
    failed = InHand(kind="rollout", target=1, slot=0, draw=0, attempt=0)
    run.put("status", Failed(uuid=UUID, producer=PRODUCER, request=failed, failure=FailureKind.ROLLOUT, reason="x"))
    run.put("status", Beat(uuid=UUID, incarnation=0, number=1))
    run.put("status", Left(uuid=UUID, producer=PRODUCER, reason="SIGTERM"))
    snapshot = run.at(1)
    assert (list(snapshot.producers), snapshot.failed) == ([], 1)


def test_steps_give_reward_idle_share_and_the_time_to_go() -> None:
    run = Run()
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
    run = Run()
    run.put("control", state(frontier=0))
    for number, at in ((0, START - 5000), (1, START + 1), (2, START + 2)):
        run.put("metrics", step(number), at)
    assert run.at(3).eta_s == 37


def test_a_step_that_is_reported_again_after_a_resume_is_counted_once() -> None:
    run = Run()
    for number in (0, 1, 1):
        run.put("metrics", step(number))
    assert run.at(0).steps == 2


def beat(number: int = 1, incarnation: int = 0, **figures: object) -> Beat:
    return Beat.model_validate({"uuid": UUID, "incarnation": incarnation, "number": number, **figures})


def figures() -> dict[str, Any]:
    return {
        "waits_for": "5 of 16 groups of version 3",
        "lead": 1,
        "window": {3: OpenVersion(unassigned=1, assigned=4, filled=11), 4: OpenVersion(unassigned=14, assigned=2, filled=0)},
        "counts": {"reissued": 6, "ignored_status": 2},
        "failures": {"lost": 4},
        "refusals": {"digest": 3},
    }


def test_open_versions_show_their_slots_and_who_has_them() -> None:
    run = Run()
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


def test_the_last_beat_tells_where_the_dispatcher_stands() -> None:
    run = Run()
    run.put("control", state(frontier=3, sealed_through=2))
    run.put("status", beat(9, **figures()), START + 4)
    run.put("status", beat(10, **{**figures(), "waits_for": ""}), START + 5)
    s = run.at(7)
    assert (s.frontier, s.sealed_through, s.incarnation, s.uuid, s.lead, s.waits_for) == (3, 2, 0, UUID, 1, "")
    assert s.beat is not None and (s.beat.number, s.beat.silent_s) == (10, 2)
    assert (s.counts, s.failures, s.refusals) == ({"reissued": 6, "ignored_status": 2}, {"lost": 4}, {"digest": 3})


def test_beats_of_an_earlier_learner_tell_nothing_of_this_one() -> None:
    run = Run()
    run.put("control", state(frontier=3))
    run.put("status", beat(9, **figures()))
    run.put("control", state(frontier=3, incarnation=40))
    assert (run.at(0).beat, run.at(0).counts) == (None, {})
    run.put("status", beat(1, incarnation=40))
    run.put("status", beat(10, **figures()))  # the earlier one still lives
    told = run.at(0)
    assert told.beat is not None and (told.beat.incarnation, told.waits_for) == (40, "")
    run.put("control", state(frontier=2, incarnation=0))
    assert run.at(0).frontier == 3


def test_a_member_that_drains_is_shown_so() -> None:
    run = Run()
    run.put("status", heartbeat(0))
    for draining, word in ((False, "serving"), (True, "draining")):
        run.put("control", state(members={PRODUCER: Member(requests_partition=0, held=3, draining=draining)}))
        (row,) = run.at(0).producers
        assert (row.state, row.member, run.at(0).members) == (word, True, (PRODUCER,))
    run.put("status", heartbeat(0, ProducerState.LEAVING))
    assert run.at(0).producers[0].state == "leaving"


def test_who_is_no_member_and_long_silent_is_not_there() -> None:
    run = Run()
    run.put("control", state(members={PRODUCER: Member(requests_partition=0)}))
    run.put("status", heartbeat(0))
    assert len(run.at(FORGET_S + 1).producers) == 1
    run.put("control", state())
    assert (len(run.at(FORGET_S - 1).producers), len(run.at(FORGET_S + 1).producers)) == (1, 0)


def test_every_record_that_a_producer_writes_shows_that_it_is_there() -> None:
    run = Run()
    run.put("status", heartbeat(0))
    ack = Ack(uuid=UUID, producer=PRODUCER, incarnation=0, round=1, phase="pause", version=0)
    run.put("status", ack, START + 3)
    assert run.at(5).producers[0].silent_s == 2
    run.put("status", ack.model_copy(update={"producer": "unknown"}), START + 3)
    assert len(run.at(5).producers) == 1


def plain() -> tuple[PlainLines, io.StringIO]:
    out = io.StringIO()
    return PlainLines(Console(file=out, width=200)), out


def test_plain_lines_tell_each_step_once_with_its_numbers() -> None:
    lines, _ = plain()
    run = Run()
    run.put("control", state(frontier=0))
    lines.lines(run.at(0))
    run.put("metrics", step(0, reward=0.125), START + 1)
    (told,) = lines.lines(run.at(1))
    assert "step 1/40" in told and "reward 0.125" in told and "waits 25 %" in told
    assert lines.lines(run.at(2)) == []


def test_plain_lines_tell_who_comes_and_goes_but_not_each_pause() -> None:
    lines, _ = plain()
    run = Run()
    lines.lines(run.at(0))
    told: list[str] = []
    for record in (
        report(),
        heartbeat(0),
        heartbeat(0, ProducerState.PAUSED),
        heartbeat(0),
        Left(uuid=UUID, producer=PRODUCER, reason="x"),
    ):
        run.put("status", record)
        told += lines.lines(run.at(1))
    assert [line.partition("] ")[2] for line in told] == [f"{PRODUCER} joining", f"{PRODUCER} serving", f"{PRODUCER} left"]


def test_plain_lines_say_what_is_waited_for_when_nothing_happens() -> None:
    lines, _ = plain()
    run = Run()
    run.view.process("learner-0", "starting: importing torch")
    run.view.process("producer-0", "starting: loading the engine")
    said = [second for second in range(60) if lines.lines(run.at(second))]
    assert max(b - a for a, b in pairwise(said)) <= 5
    (told,) = PlainLines(Console(file=io.StringIO())).lines(run.at(60))[-1:]
    assert "learner starting" in told
    later = lines.lines(run.at(70))
    assert later == ["[1:10] learner starting (starting: importing torch); producer-0 starting: loading the engine"]


def test_a_console_that_is_no_terminal_gets_plain_lines() -> None:
    out = io.StringIO()
    display = make_display(Console(file=out))
    assert isinstance(display, PlainLines)
    display.say("x [not markup]")
    assert out.getvalue() == "x [not markup]\n"


def shown(snapshot: Snapshot, **options: object) -> str:
    out = io.StringIO()
    Console(file=out, width=160, **options).print(render(snapshot))  # type: ignore[arg-type]
    return out.getvalue()


def test_the_live_table_shows_all_processes_and_numbers() -> None:
    run = Run()
    run.view.broker("running at 127.0.0.1:29092")
    run.view.process("producer-0", "starting")
    run.view.process("producer-1", "starting: loading")
    run.put("control", state(frontier=3, sealed_through=3, refused={"producer-9": ["model.dtype differs"]}))
    run.put("status", heartbeat(0))
    run.put("metrics", step(2, reward=0.75))
    text = shown(run.at(65))
    for word in (RUN, "step 3/40", "1:05 elapsed", "0.750", "training target version 3", PRODUCER, "serving", "2/8", "25 %"):
        assert word in text
    assert "producer-1" in text and "starting: loading" in text
    assert text.count("producer-0") == 1
    assert "refused producer-9: model.dtype differs" in text


def test_the_live_table_has_a_line_for_the_open_versions() -> None:
    run = Run()
    run.put("control", state(frontier=3, window={3: "id3", 4: "id4"}))
    before = shown(run.at(0)).count("\n")
    run.put("status", beat(**figures()))
    assert shown(run.at(0)).count("\n") == before + 1
    assert "3: 11/16 filled   4: 0/16 filled" in shown(run.at(0))


def detailed(snapshot: Snapshot) -> list[str]:
    """The lines of the long form, each as words with one blank between them."""
    out = io.StringIO()
    Console(file=out, width=160).print(render_details(snapshot))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_the_long_form_has_a_line_for_everything() -> None:
    run = Run()
    transfer = Round(number=7, version=3, mode="keep", phase="transfer", members=[PRODUCER, "producer-1"])
    run.put("control", state(frontier=2, round=transfer), START)
    members = {PRODUCER: Member(requests_partition=0, held=3, digest="w")}
    open_ = {"window": {3: "id3", 4: "id4"}, "validations": {3: "id"}}
    run.put("control", state(frontier=3, sealed_through=2, weights_digest="w", members=members, **open_), START + 2)
    run.put("status", heartbeat(0), START + 2)
    answer = Ack(uuid=UUID, producer="producer-1", incarnation=0, round=7, phase="loaded", version=3, ok=False, error="no route")
    run.put("status", answer, START + 1)
    run.put("status", beat(57, **figures()), START + 4)
    lines = detailed(run.at(5))
    for line in (
        "frontier 3 sealed through 2 lead 1 incarnation 0 beat 57, 1 s ago",
        "waits for 5 of 16 groups of version 3",
        "validates version 3",
        "3 1 4 11",
        "4 14 2 0",
        "7 3 2 done 0.00 2.00 - 1 1",
        "round 7 failed at producer-1: no route",
        "counted: reissued 6 ignored status 2",
        "failures: lost 4",
        "refused records: digest 3",
    ):
        assert line in lines, (line, lines)


def test_the_long_form_of_a_run_of_which_little_is_known_is_short() -> None:
    run = Run()
    assert not [line for line in detailed(run.at(0)) if "frontier" in line or "open version" in line or "counted" in line]
    run.put("control", state(stop=Stop(reason="stopped by a@b", version=3, resumable=True)))
    assert "stopped at 3: stopped by a@b (can be resumed)" in detailed(run.at(0))


def test_a_terminal_is_drawn_on_in_the_form_that_is_asked_for() -> None:
    run = Run()
    run.put("control", state(frontier=3, sealed_through=2))
    for draw, there in ((render_details, True), (None, False)):
        out = io.StringIO()
        display = make_display(Console(file=out, width=160, force_terminal=True, _environ={"TERM": "xterm"}), draw)
        display.show(run.at(0))
        display.close()
        assert isinstance(display, LiveTable)
        assert ("sealed through 2" in out.getvalue()) == there


def test_a_snapshot_is_one_json_object() -> None:
    run = Run()
    run.put("control", state(frontier=3, window={3: "id3"}, stop=None, members={PRODUCER: Member(requests_partition=0)}))
    run.put("status", heartbeat(0))
    run.put("status", beat(**figures()))
    run.put("metrics", step(0, reward=float("nan")))
    read = json.loads(as_json(run.at(1)), parse_constant=lambda word: pytest.fail(word))
    assert (read["members"], read["frontier"], read["reward"], read["stop"]) == ([PRODUCER], 3, None, None)
    assert read["window"] == [{"version": 3, "unassigned": 1, "assigned": 4, "filled": 11, "holders": {}}]
    run.put("control", state(stop=Stop(reason="done", version=1, resumable=True)))
    assert json.loads(as_json(run.at(1)))["stop"]["reason"] == "done"


def test_no_color_is_respected() -> None:
    run = Run()
    for number in range(3):
        run.put("metrics", step(number, reward=number))
    coloured = shown(run.at(1), force_terminal=True, color_system="standard", _environ={})
    plain = shown(run.at(1), force_terminal=True, color_system="standard", _environ={"NO_COLOR": "1"})
    assert "\x1b[36m" in coloured
    assert "\x1b[36m" not in plain


def test_a_sparkline_spans_from_lowest_to_highest_and_keeps_its_width() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 1]) == "▁█"
    assert sparkline([2, 2, 2]) == "▁▁▁"
    assert len(sparkline(list(range(1000)), width=40)) == 40
