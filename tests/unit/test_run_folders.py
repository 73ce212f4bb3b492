from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.cli.export import copy_export
from launch.config.resume import resumed
from launch.folders import RunFolder, find, make, mint_id, set_logs_aside
from launch.observe.summary import summarize, trained
from launch.observe.view import RunView
from launch.supervise.outcome import FAILED, FINISHED, Outcome
from learner.checkpoint.manifest import Manifest, Offsets
from schemas.config.config import Config, resumable
from schemas.config.file import build, load
from schemas.errors import ConfigError, WeirError
from tests.fakes import saved
from tests.fakes.facts import FACTS
from tests.fakes.runs import raw_config


def run_file(runs: Path, run_id: str = "tiny-1") -> Config:
    return build(raw_config(run={"name": "tiny", "dir": str(runs)})).with_id(run_id)


def checkpoint(folder: RunFolder, step: int) -> Path:
    manifest = Manifest(
        run="u", version=step, incarnation=0, topic_ids={}, next_offsets=Offsets(control=0, status=0), state_digest="s",
        weights_digest="w", config_digest="c", determinism=FACTS,
    )  # fmt: skip
    return saved.save(folder.path / "checkpoints", manifest, lambda _: None)


def exported(folder: RunFolder, step: int) -> Path:
    path = folder.path / "hf" / f"step_{step:08d}"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_a_minted_id_is_the_name_and_the_start_time() -> None:
    run_id = mint_id("tiny", 0)
    assert run_id.startswith("tiny-19") and len(run_id) == len("tiny-19700101-000000")
    assert run_file(Path("runs"), run_id).run.id == run_id


def test_a_new_folder_holds_the_resolved_config_and_is_the_latest(tmp_path: Path) -> None:
    first, second = run_file(tmp_path, "tiny-1"), run_file(tmp_path, "tiny-2")
    make(first)
    made = make(second)
    assert load(made.config) == second
    assert find(None, tmp_path).run_id == "tiny-2"
    assert find("tiny-1", tmp_path).run_id == "tiny-1"
    assert find(str(tmp_path / "tiny-1"), Path("elsewhere")).run_id == "tiny-1"


def test_a_folder_is_never_used_twice(tmp_path: Path) -> None:
    make(run_file(tmp_path))
    with pytest.raises(ConfigError, match="exists"):
        make(run_file(tmp_path))


def test_an_unknown_run_names_the_known_ones(tmp_path: Path) -> None:
    make(run_file(tmp_path))
    with pytest.raises(ConfigError, match="known: tiny-1"):
        find("other", tmp_path)


def test_a_run_without_a_checkpoint_cannot_go_on(tmp_path: Path) -> None:
    make(run_file(tmp_path))
    with pytest.raises(ConfigError, match="no whole checkpoint"):
        resumed(None, [], tmp_path)


def test_a_run_goes_on_with_its_own_config_and_what_may_change(tmp_path: Path) -> None:
    folder = make(run_file(tmp_path))
    checkpoint(folder, 10)
    found, checked = resumed("tiny-1", ["grpo.max_num_steps=80", "producer.count=1"], tmp_path)
    assert found.run_id == checked.config.run.id == "tiny-1"
    assert (checked.config.grpo.max_num_steps, checked.config.producer.count) == (80, 1)


@pytest.mark.parametrize(
    "override", ["grpo.num_prompts_per_step=8", "learner.optimizer.lr=1.0", "run.seed=3", "model.dtype=bfloat16"]
)
def test_what_training_depends_on_cannot_change_in_a_run(tmp_path: Path, override: str) -> None:
    checkpoint(make(run_file(tmp_path)), 10)
    with pytest.raises(ConfigError, match="cannot change in a run that goes on"):
        resumed(None, [override], tmp_path)


def test_a_run_does_not_go_on_to_fewer_steps_than_it_has_trained(tmp_path: Path) -> None:
    checkpoint(make(run_file(tmp_path)), 10)
    with pytest.raises(ConfigError, match=r"grpo\.max_num_steps=9: the newest checkpoint is of version 10; give 10 or more"):
        resumed(None, ["grpo.max_num_steps=9"], tmp_path)
    assert resumed(None, ["grpo.max_num_steps=10"], tmp_path)[1].config.grpo.max_num_steps == 10


def test_damaged_checkpoints_are_named_where_there_is_no_whole_one(tmp_path: Path) -> None:
    folder = checkpoint(make(run_file(tmp_path)), 10)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"no whole checkpoint: .*step_00000010.*manifest\.json cannot be read"):
        resumed(None, [], tmp_path)


def test_logs_of_a_run_that_goes_on_are_kept_apart(tmp_path: Path) -> None:
    folder = make(run_file(tmp_path))
    for part in ("first", "second"):
        (folder.logs / "learner-0.log").write_text(part)
        set_logs_aside(folder)
    assert {path.name: path.read_text() for path in folder.logs.iterdir()} == {
        "learner-0.log.1": "first",
        "learner-0.log.2": "second",
    }


def test_resumable_keys_are_known_keys() -> None:
    assert resumable("kafka.security.username")
    assert not resumable("kafka.security_x")
    assert not resumable("grpo.max_num_steps_x")


def test_an_export_is_copied_whole(tmp_path: Path) -> None:
    folder = make(run_file(tmp_path))
    exported(folder, 12)
    copy_export(folder, 12, tmp_path / "out" / "model")
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    with pytest.raises(ConfigError, match="exists"):
        copy_export(folder, 12, tmp_path / "out" / "model")


def test_a_version_that_was_not_exported_says_what_there_is(tmp_path: Path) -> None:
    folder = make(run_file(tmp_path))
    exported(folder, 12)
    checkpoint(folder, 10)
    with pytest.raises(WeirError, match=r"exported versions: 12; .*only a learner can turn"):
        copy_export(folder, 10, tmp_path / "out")
    with pytest.raises(WeirError, match="training checkpoints: 10"):
        copy_export(folder, 11, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_checkpoints_and_exports_are_not_counted(tmp_path: Path) -> None:
    folder = make(run_file(tmp_path))
    whole = checkpoint(folder, 10)
    (folder.path / "checkpoints" / "step_00000020").mkdir()
    (checkpoint(folder, 30) / "manifest.json").write_text("{")
    (folder.path / "hf" / "step_00000020").mkdir(parents=True)
    assert folder.checkpoints == [whole]
    assert folder.exports == []


def test_metrics_give_steps_and_first_and_last_reward_despite_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": n, "train/reward": n / 10}) for n in (4, 5, 5, 6)]
    path.write_text("\n".join(lines) + '\n{"step": 7, "train/rew')
    found = trained(path)
    assert (found.steps, found.last_step, found.first_reward, found.last_reward) == (3, 6, 0.4, 0.6)


def test_the_summary_of_a_finished_run_says_where_everything_is(tmp_path: Path) -> None:
    folder = make(run_file(tmp_path))
    checkpoint(folder, 40)
    exported(folder, 40)
    folder.metrics.write_text("".join(json.dumps({"step": n, "train/reward": n / 40}) + "\n" for n in range(40)))
    folder.validation.write_text('{"version": 0, "validation/accuracy": 0.01}\n{"version": 40, "validation/accuracy": 0.985}\n')
    snapshot = replace(RunView("tiny-1", 0).snapshot(83), last=40)
    text = "\n".join(summarize(Outcome(FINISHED, "all steps are trained"), snapshot, folder, tensorboard=True, blamed_log=None))
    for words in (
        "run tiny-1 finished: all steps are trained",
        "steps 40 of 40 in 1:23, reward 0.000 -> 0.975",
        str(folder.path / "checkpoints" / "step_00000040"),
        str(folder.path / "hf" / "step_00000040"),
        f"show trajectories --version 39 --text --limit 3 --run {folder.path}",
        "validation 0.985",
        "--topic tiny-1.trajectories.v00000039",
        f"tensorboard --logdir {folder.path}",
    ):
        assert words in text
    assert "--resume" not in text and "restarts" not in text


def test_the_summary_counts_what_was_started_again(tmp_path: Path) -> None:
    folder = make(run_file(tmp_path))
    counts = {"producer-0": 2, "broker": 1}
    told = summarize(
        Outcome(FINISHED, "x"), RunView("tiny-1", 0).snapshot(9), folder, tensorboard=False, blamed_log=None, restarts=counts
    )
    assert "restarts: broker 1, producer-0 2" in told


def test_the_summary_of_a_failed_run_shows_the_cause_and_the_log(tmp_path: Path) -> None:
    folder = make(run_file(tmp_path))
    checkpoint(folder, 10)
    log = folder.logs / "producer-0.log"
    log.write_text("12:00 INFO x: fine\n12:01 ERROR   producer: no such model\n")
    outcome = Outcome(FAILED, "producer-0 ended with exit code 1 before the run was finished", "producer-0")
    text = "\n".join(summarize(outcome, RunView("tiny-1", 0).snapshot(9), folder, tensorboard=True, blamed_log=log))
    for words in (
        "FAILED: producer-0 ended with exit code 1",
        "no such model",
        str(log),
        "show control status",
        f"--resume {folder.path}",
    ):
        assert words in text
