"""What a replay reports of its steps, and the exit code that follows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from learner.replay.compare import StepFigures
from learner.replay.plan import ReplayRequest, plan_replay
from learner.replay.replayer import Replayer
from learner.replay.report import DIFFERS, EQUAL, ReplayReport
from schemas.config.config import Config
from schemas.errors import WeirError
from schemas.records.group import decode
from schemas.records.metrics import StepMetrics
from tests.fakes.learner.facts import FACTS
from tests.fakes.learner.replays import Sealed, run_folder
from tests.fakes.records.make import UUID


class Trainer:
    """A step comes out with its version as loss; a group's scores are all 0."""

    def __init__(self, config: Config, loaded: str) -> None:
        self.config = config
        self.loaded = loaded
        self.config_changed = False

    def step(self, records: Sequence[bytes]) -> StepFigures:
        version = decode(records[0]).request.version
        return StepFigures.of({"loss": float(version), "grad_norm": 1.0}, f"state-{version}", "w")

    def present_digest(self) -> str:
        return self.loaded

    def score(self, record: bytes) -> list[list[float]]:
        return [[0.0] * len(t.tokens) for t in decode(record).trajectories]

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def change_config(self) -> None:
        self.config_changed = True


def recorded(step: int, state: str | None = None) -> StepMetrics:
    return StepMetrics(
        uuid=UUID,
        incarnation=0,
        step=step,
        seal_offset=1,
        config_digest="c",
        state_digest=state or f"state-{step}",
        weights_digest="w",
        metrics={"train/loss": float(step), "train/grad_norm": 1.0},
    )


class Replay:
    """A replay from the checkpoint of version 4 on. `loaded`: digest of the state that the checkpoint gave."""

    def __init__(
        self,
        tmp_path: Path,
        *steps: StepMetrics,
        loaded: str = "s",
        configs: dict[int, str] | None = None,
        step: int | None = None,
        group: str | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        self.plan = plan_replay(ReplayRequest(run_folder(tmp_path / "runs", {4: 1}), step, None, group, overrides))
        self.file = tmp_path / "report"
        source = Sealed(dict.fromkeys(range(4, 8), self.plan.config.digest) | (configs or {}))
        self.trainer = Trainer(self.plan.start_config, loaded)
        by_step = {record.step: record for record in steps}
        self.replayer = Replayer(self.plan, self.trainer, source, by_step, ReplayReport(self.file), FACTS)

    def run(self) -> int:
        return self.replayer.run()

    def lines(self) -> list[str]:
        return [json.loads(line)["line"] for line in self.file.read_text().splitlines()]


def test_all_as_recorded_is_equal(tmp_path: Path) -> None:
    replay = Replay(tmp_path, recorded(4), recorded(5), step=5)
    assert replay.run() == EQUAL
    assert [line.split()[:3] for line in replay.lines()] == [["step", "4", "equal"], ["step", "5", "equal"]]


CHANGE = "loss_fn.ratio_clip_max=0.3"


@pytest.mark.parametrize("asked", [{"step": 6}, {"group": "v00000006/s0000"}, {"step": 6, "overrides": [CHANGE]}])
@pytest.mark.parametrize("on_the_way", [recorded(5, "another"), None])
def test_a_difference_on_the_way_is_in_the_exit_code_whatever_is_asked_for(
    tmp_path: Path, asked: dict[str, object], on_the_way: StepMetrics | None
) -> None:
    steps = [recorded(4), recorded(6), *([on_the_way] if on_the_way is not None else [])]
    replay = Replay(tmp_path, *steps, **asked)  # type: ignore[arg-type]
    assert replay.run() == DIFFERS
    assert "DIFFERS" in replay.lines()[1] or "not recorded" in replay.lines()[1]
    assert Replay(tmp_path / "other", *steps, recorded(5), **asked).run() == EQUAL  # type: ignore[arg-type]


def test_a_group_is_shown_after_the_way_to_it(tmp_path: Path) -> None:
    replay = Replay(tmp_path, recorded(4), group="v00000005/s0000")
    assert replay.run() == EQUAL
    assert replay.lines()[1:3] == [
        "learner: version 5, the state before the step; ratio: learner over engine",
        next(line for line in replay.lines() if line.startswith("v00000005/s0000/d0/a0")),
    ]


def test_the_config_changes_at_the_requested_step(tmp_path: Path) -> None:
    replay = Replay(tmp_path, recorded(4), recorded(5), step=5, overrides=[CHANGE])
    assert replay.run() == EQUAL
    assert replay.trainer.config_changed
    assert replay.lines()[1] == "step 5  0 of 2 metrics differ, the state after it is the same"


def test_a_checkpoint_of_another_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeirError, match=r"step_00000004 does not hold what its manifest\.json says: its state is other"):
        Replay(tmp_path, recorded(4), step=4, loaded="other").run()


def test_each_config_that_batches_were_sealed_under_is_noted_once(tmp_path: Path) -> None:
    steps = [recorded(version) for version in (4, 5, 6, 7)]
    replay = Replay(tmp_path, *steps, configs={5: "then", 6: "then"}, step=7)
    assert replay.run() == EQUAL
    notes = [line for line in replay.lines() if line.startswith("note")]
    assert len(notes) == 1 and "step 5 was sealed under the config of digest then" in notes[0]
