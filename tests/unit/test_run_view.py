from __future__ import annotations

import io
from itertools import pairwise

from rich.console import Console

from broker_config.topics import Topics
from launch.display import PlainLines, make_display, render, sparkline
from launch.view import RunView, Snapshot
from launch.watch import feed
from schemas.control import Claim, DatasetFacts, Member, Round, State, Stop
from schemas.metrics import StepMetrics
from schemas.records import JsonRecord
from schemas.status import Beat, Failed, FailureKind, Heartbeat, InHand, Left, ProducerState, Report
from tests.fakes.runs import RUN, UUID

START = 1000.0
PRODUCER = "producer-0-abcd1234"
TOPICS = Topics(RUN)


class Run:
    """A view fed through the topics' own decoders."""

    def __init__(self) -> None:
        self.view = RunView(RUN, START)

    def put(self, topic: str, record: JsonRecord, at: float = START) -> None:
        feed(self.view, TOPICS, f"{RUN}.{topic}", record.to_bytes(), at)

    def at(self, seconds: float) -> Snapshot:
        return self.view.snapshot(START + seconds)


def claim() -> Claim:
    return Claim(uuid=UUID, host="here", pid=1, config_digest="c0")


def state(**values: object) -> State:
    return State.model_validate({"uuid": UUID, "incarnation": 0, "config_digest": "c0", "last_version": 40, **values})


def heartbeat(tokens: int, state: ProducerState = ProducerState.SERVING, in_hand: int = 2) -> Heartbeat:
    hand = [InHand(kind="rollout", T=1, slot=slot, draw=0, attempt=0) for slot in range(in_hand)]
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
    assert not run.view.claimed


def test_the_learners_phase_follows_from_control() -> None:
    run = Run()
    phases = []
    for record in (
        claim(),
        state(),
        state(members={PRODUCER: Member(requests_partition=0)}),
        state(round=Round(number=1, version=0, mode="keep", phase="pause", members=[PRODUCER])),
        state(round=Round(number=1, version=0, mode="keep", phase="transfer", members=[PRODUCER])),
        state(F=0),
        state(F=0, sealed_through=0),
        state(F=1, sealed_through=0),
        state(F=1, stop=Stop(reason="done", v=1, resumable=True, finished=True)),
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
    run.put("control", state(stop=Stop(reason="interrupted", v=1, resumable=True)))
    run.put("control", claim())
    assert run.view.stop is None


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
    run.put("control", state(stop=Stop(reason="done", v=1, resumable=True)), START + 70)
    assert run.at(500).elapsed_s == 60


def test_members_that_give_no_sign_are_shown_as_silent_until_the_end() -> None:
    run = Run()
    run.put("control", state(members={PRODUCER: Member(requests_partition=0, held=3)}))
    (row,) = run.at(0).producers
    assert (row.name, row.state, row.version) == (PRODUCER, "silent", 3)
    end = Stop(reason="done", v=1, resumable=True)
    run.put("control", state(members={PRODUCER: Member(requests_partition=0, held=3)}, stop=end))
    assert list(run.at(0).producers) == []


def test_who_left_is_gone_and_failures_are_counted() -> None:
    run = Run()
    run.put("status", report())
    failed = InHand(kind="rollout", T=1, slot=0, draw=0, attempt=0)
    run.put("status", Failed(uuid=UUID, producer=PRODUCER, request=failed, failure=FailureKind.ROLLOUT, reason="x"))
    run.put("status", Beat(uuid=UUID, incarnation=0, number=1))
    run.put("status", Left(uuid=UUID, producer=PRODUCER, reason="SIGTERM"))
    snapshot = run.at(1)
    assert (list(snapshot.producers), snapshot.failed) == ([], 1)


def test_steps_give_reward_idle_share_and_the_time_to_go() -> None:
    run = Run()
    run.put("control", state(F=0))
    for number in range(3):
        run.put("metrics", step(number, reward=0.1 * (number + 1)), START + 10 + 2 * number)
    snapshot = run.at(20)
    assert (snapshot.steps, snapshot.last) == (3, 40)
    assert snapshot.reward == 0.1 * 3
    assert snapshot.first_reward == 0.1
    assert snapshot.idle_share == 0.25
    assert snapshot.step_s == 2
    assert snapshot.eta_s == 2 * 37


def test_the_time_to_go_is_of_this_part_of_a_resumed_run() -> None:
    run = Run()
    run.put("control", state(F=0))
    for number, at in ((0, START - 5000), (1, START + 1), (2, START + 2)):
        run.put("metrics", step(number), at)
    assert run.at(3).eta_s == 37


def test_a_step_that_is_reported_again_after_a_resume_is_counted_once() -> None:
    run = Run()
    for number in (0, 1, 1):
        run.put("metrics", step(number))
    assert run.at(0).steps == 2


def plain() -> tuple[PlainLines, io.StringIO]:
    out = io.StringIO()
    return PlainLines(Console(file=out, width=200)), out


def test_plain_lines_tell_each_step_once_with_its_numbers() -> None:
    lines, _ = plain()
    run = Run()
    run.put("control", state(F=0))
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
    run.put("control", state(F=3, sealed_through=3, refused={"producer-9": ["model.dtype differs"]}))
    run.put("status", heartbeat(0))
    run.put("metrics", step(2, reward=0.75))
    text = shown(run.at(65))
    for word in (RUN, "step 3/40", "1:05 elapsed", "0.750", "training target version 3", PRODUCER, "serving", "2/8", "25 %"):
        assert word in text
    assert "producer-1" in text and "starting: loading" in text
    assert text.count("producer-0") == 1
    assert "refused producer-9: model.dtype differs" in text


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
