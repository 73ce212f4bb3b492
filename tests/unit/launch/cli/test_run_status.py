from __future__ import annotations

import json

import pytest

from launch.cli.run_status import snapshot_json
from schemas.records.control import Member, Stop
from tests.fakes.launch.observed_run import PRODUCER, ObservedRun, beat, figures, heartbeat, state, step


def test_a_snapshot_is_one_json_object() -> None:
    run = ObservedRun()
    run.put("control", state(frontier=3, window={3: "id3"}, stop=None, members={PRODUCER: Member(requests_partition=0)}))
    run.put("status", heartbeat(0))
    run.put("status", beat(**figures()))
    run.put("metrics", step(0, reward=float("nan")))
    read = json.loads(snapshot_json(run.at(1)), parse_constant=lambda word: pytest.fail(word))
    assert (read["members"], read["frontier"], read["reward"], read["stop"]) == ([PRODUCER], 3, None, None)
    assert read["window"] == [{"version": 3, "unassigned": 1, "assigned": 4, "filled": 11, "holders": {}}]
    run.put("control", state(stop=Stop(reason="done", version=1, resumable=True)))
    assert json.loads(snapshot_json(run.at(1)))["stop"]["reason"] == "done"
