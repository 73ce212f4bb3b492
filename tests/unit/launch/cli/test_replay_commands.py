"""`weir replay`: what is checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launch.cli.replay_commands import replay
from learner.dump.index import Index, seal_off
from learner.replay import __main__ as entry
from learner.replay.plan import ReplayRequest, plan_replay
from learner.replay.report import ReplayReport
from schemas.errors import ConfigError
from schemas.records.metrics import StepMetrics
from tests.fakes.learner.replays import Sealed, run_folder
from tests.fakes.records.make import UUID


def test_a_run_is_no_dump(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "runs", {4: 1})
    with pytest.raises(ConfigError, match=r"dump='.*/r': has no index\.json; give a folder that weir dump made"):
        replay(step=4, to=None, run=None, from_=folder, group=None, sets=None)


def sealed_dump(folder: Path) -> Path:
    run_folder(folder.parent, {4: 1}).rename(folder)
    index = Index(run_id="r", uuid=UUID, config_digest="c", prompts_per_step=16, checkpoint=4, last=6, topics={})
    seal_off(folder, index)
    return folder


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints/step_00000004/manifest.json", "checkpoints/step_00000004/data"])
def test_a_dump_is_verified_before_anything_in_it_is_read(tmp_path: Path, name: str) -> None:
    folder = sealed_dump(tmp_path / "dump")
    assert plan_replay(ReplayRequest(folder, 4)).index is not None
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        plan_replay(ReplayRequest(folder, 4))
    (problem,) = caught.value.problems
    assert problem.key == str(folder / name) and "has sha256" in problem.why


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"step": 7}, "--step=7: the dump holds versions 4 to 6"),
        ({"step": 5, "to": 7}, "--to=7: the dump holds versions 4 to 6"),
        ({"group": "v00000007/s0000"}, "--group='v00000007/s0000': the dump holds versions 4 to 6"),
    ],
)
def test_what_a_dump_does_not_hold_is_reported_as_it_was_typed(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_replay(ReplayRequest(sealed_dump(tmp_path / "dump"), **asked))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("v00000022/s0000", "--group='v00000022/s0000': the topics have no record of step 22: recorded are 4 to 6"),
        ("v00000006/s0000/d0/a1", "the seal names v00000006/s0000/d0/a0"),
    ],
)
def test_a_group_that_cannot_be_shown_is_reported_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, message: str
) -> None:
    class Recorded(Sealed):
        def step_metrics(self) -> Mapping[int, StepMetrics]:
            made = {"uuid": UUID, "incarnation": 0, "seal_offset": 1, "config_digest": "c", "metrics": {}}
            return {step: StepMetrics(step=step, **made) for step in (4, 5, 6)}

    for name in ("OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(entry, "open_source", lambda plan: Recorded({4: "c", 5: "c", 6: "c"}))
    with pytest.raises(ConfigError, match=message):
        entry.replay(ReplayRequest(run_folder(tmp_path / "runs", {4: 1}), group=group), ReplayReport(None))
