from __future__ import annotations

import io
from itertools import pairwise

from rich.console import Console

from launch.observe.details import render_details
from launch.observe.display import LiveTable, PlainLines, make_display
from schemas.records.status import Left, ProducerState
from tests.fakes.launch.observed_run import PRODUCER, START, ObservedRun, heartbeat, report, state, step
from tests.fakes.records.make import UUID


def plain() -> tuple[PlainLines, io.StringIO]:
    out = io.StringIO()
    return PlainLines(Console(file=out, width=200)), out


def test_plain_lines_show_each_step_once_with_its_numbers() -> None:
    lines, _ = plain()
    run = ObservedRun()
    run.put("control", state(frontier=0))
    lines.lines(run.at(0))
    run.put("metrics", step(0, reward=0.125), START + 1)
    (shown,) = lines.lines(run.at(1))
    assert "step 1/40" in shown and "reward 0.125" in shown and "waits 25 %" in shown
    assert lines.lines(run.at(2)) == []


def test_plain_lines_show_who_joins_and_leaves_but_not_each_pause() -> None:
    lines, _ = plain()
    run = ObservedRun()
    lines.lines(run.at(0))
    shown: list[str] = []
    for record in (
        report(),
        heartbeat(0),
        heartbeat(0, ProducerState.PAUSED),
        heartbeat(0),
        Left(uuid=UUID, producer=PRODUCER, reason="x"),
    ):
        run.put("status", record)
        shown += lines.lines(run.at(1))
    assert [line.partition("] ")[2] for line in shown] == [f"{PRODUCER} joining", f"{PRODUCER} serving", f"{PRODUCER} left"]


def test_plain_lines_say_what_is_waited_for_when_nothing_happens() -> None:
    lines, _ = plain()
    run = ObservedRun()
    run.view.process("learner-0", "starting: importing torch")
    run.view.process("producer-0", "starting: loading the engine")
    said = [second for second in range(60) if lines.lines(run.at(second))]
    assert max(b - a for a, b in pairwise(said)) <= 5
    (shown,) = PlainLines(Console(file=io.StringIO())).lines(run.at(60))[-1:]
    assert "learner starting" in shown
    later = lines.lines(run.at(70))
    assert later == ["[1:10] learner starting (starting: importing torch); producer-0 starting: loading the engine"]


def test_a_console_that_is_no_terminal_gets_plain_lines() -> None:
    out = io.StringIO()
    display = make_display(Console(file=out))
    assert isinstance(display, PlainLines)
    display.say("x [not markup]")
    assert out.getvalue() == "x [not markup]\n"


def test_a_terminal_is_drawn_on_in_the_form_that_is_asked_for() -> None:
    run = ObservedRun()
    run.put("control", state(frontier=3, sealed_through=2))
    for draw, there in ((render_details, True), (None, False)):
        out = io.StringIO()
        display = make_display(Console(file=out, width=160, force_terminal=True, _environ={"TERM": "xterm"}), draw)
        display.show(run.at(0))
        display.close()
        assert isinstance(display, LiveTable)
        assert ("sealed through 2" in out.getvalue()) == there
