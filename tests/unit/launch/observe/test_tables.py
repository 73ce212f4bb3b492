from __future__ import annotations

import io

from rich.console import Console

from launch.observe.run_view import RunSnapshot
from launch.observe.tables import render_table
from tests.fakes.launch.observed_run import PRODUCER, ObservedRun, beat, figures, heartbeat, state, step
from tests.fakes.records.runs import RUN


def shown(snapshot: RunSnapshot, **options: object) -> str:
    out = io.StringIO()
    Console(file=out, width=160, **options).print(render_table(snapshot))  # type: ignore[arg-type]
    return out.getvalue()


def test_the_live_table_shows_all_processes_and_numbers() -> None:
    run = ObservedRun()
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
    run = ObservedRun()
    run.put("control", state(frontier=3, window={3: "id3", 4: "id4"}))
    before = shown(run.at(0)).count("\n")
    run.put("status", beat(**figures()))
    assert shown(run.at(0)).count("\n") == before + 1
    assert "3: 11/16 filled   4: 0/16 filled" in shown(run.at(0))


def test_no_color_is_respected() -> None:
    run = ObservedRun()
    for number in range(3):
        run.put("metrics", step(number, reward=number))
    coloured = shown(run.at(1), force_terminal=True, color_system="standard", _environ={})
    plain = shown(run.at(1), force_terminal=True, color_system="standard", _environ={"NO_COLOR": "1"})
    assert "\x1b[36m" in coloured
    assert "\x1b[36m" not in plain
