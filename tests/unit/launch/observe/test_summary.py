from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from launch.exit_codes import FAILED, FINISHED
from launch.folders import make_run_folder
from launch.observe.run_view import RunView
from launch.observe.summary import summarize_run, summarize_training
from launch.outcome import RunOutcome
from tests.fakes.launch.run_folders import add_checkpoint, add_export, run_config


def test_metrics_give_steps_and_first_and_last_reward_despite_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": n, "train/reward": n / 10}) for n in (4, 5, 5, 6)]
    path.write_text("\n".join(lines) + '\n{"step": 7, "train/rew')
    found = summarize_training(path)
    assert (found.steps, found.last_step, found.first_reward, found.last_reward) == (3, 6, 0.4, 0.6)


def test_the_summary_of_a_finished_run_says_where_everything_is(tmp_path: Path) -> None:
    folder = make_run_folder(run_config(tmp_path))
    add_checkpoint(folder, 40)
    add_export(folder, 40)
    folder.metrics.write_text("".join(json.dumps({"step": n, "train/reward": n / 40}) + "\n" for n in range(40)))
    folder.validation.write_text('{"version": 0, "validation/accuracy": 0.01}\n{"version": 40, "validation/accuracy": 0.985}\n')
    snapshot = replace(RunView("tiny-1", 0).snapshot(83), last=40)
    text = "\n".join(
        summarize_run(RunOutcome(FINISHED, "all steps are trained"), snapshot, folder, tensorboard=True, blamed_log=None)
    )
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
    folder = make_run_folder(run_config(tmp_path))
    counts = {"producer-0": 2, "broker": 1}
    lines = summarize_run(
        RunOutcome(FINISHED, "x"), RunView("tiny-1", 0).snapshot(9), folder, tensorboard=False, blamed_log=None, restarts=counts
    )
    assert "restarts: broker 1, producer-0 2" in lines


def test_the_summary_of_a_failed_run_shows_the_cause_and_the_log(tmp_path: Path) -> None:
    folder = make_run_folder(run_config(tmp_path))
    add_checkpoint(folder, 10)
    log = folder.logs / "producer-0.log"
    log.write_text("12:00 INFO x: fine\n12:01 ERROR   producer: no such model\n")
    outcome = RunOutcome(FAILED, "producer-0 ended with exit code 1 before the run was finished", "producer-0")
    text = "\n".join(summarize_run(outcome, RunView("tiny-1", 0).snapshot(9), folder, tensorboard=True, blamed_log=log))
    for words in (
        "FAILED: producer-0 ended with exit code 1",
        "no such model",
        str(log),
        "show control status",
        f"--resume {folder.path}",
    ):
        assert words in text
