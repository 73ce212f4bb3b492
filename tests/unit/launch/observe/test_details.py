from __future__ import annotations

import io

from rich.console import Console

from launch.observe.details import render_details
from launch.observe.run_view import RunSnapshot
from schemas.records.control import Member, Round, Stop
from schemas.records.status import Ack
from tests.fakes.launch.observed_run import PRODUCER, START, ObservedRun, beat, figures, heartbeat, state
from tests.fakes.records.make import UUID


def detailed(snapshot: RunSnapshot) -> list[str]:
    """The lines of the long form, each as words with one blank between them."""
    out = io.StringIO()
    Console(file=out, width=160).print(render_details(snapshot))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_the_long_form_has_a_line_for_everything() -> None:
    run = ObservedRun()
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
    run = ObservedRun()
    assert not [line for line in detailed(run.at(0)) if "frontier" in line or "open version" in line or "counted" in line]
    run.put("control", state(stop=Stop(reason="stopped by a@b", version=3, resumable=True)))
    assert "stopped at 3: stopped by a@b (can be resumed)" in detailed(run.at(0))
