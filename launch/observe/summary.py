"""What a person reads when a run has ended: the result, why it ended, where everything is, what to do next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_config.local.tools import wrappers_folder
from launch.exit_codes import FINISHED, INTERRUPTED
from launch.folders import RunFolder, last_validation, name_for_commands
from launch.observe.formats import clock, number, short_path
from launch.observe.logtail import error_lines
from launch.observe.run_view import RunSnapshot
from launch.outcome import RunOutcome

REWARD = "train/reward"


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """What `metrics.jsonl` holds: the number of steps, the last step, the first and the last reward."""

    steps: int = 0
    last_step: int = -1
    first_reward: float | None = None
    last_reward: float | None = None


def summarize_training(metrics: Path) -> TrainingSummary:
    """From the file, which is there even when the topics are not; a last line that was cut off is left out."""
    steps: set[int] = set()
    rewards: list[float] = []
    try:
        lines = metrics.read_text(encoding="utf-8").splitlines()
    except OSError:
        return TrainingSummary()
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        steps.add(int(record["step"]))
        if isinstance(record.get(REWARD), int | float):
            rewards.append(float(record[REWARD]))
    first, last = (rewards[0], rewards[-1]) if rewards else (None, None)
    return TrainingSummary(len(steps), max(steps, default=-1), first, last)


def summarize_run(
    outcome: RunOutcome,
    last: RunSnapshot,
    folder: RunFolder,
    *,
    tensorboard: bool,
    blamed_log: Path | None,
    restarts: Mapping[str, int] | None = None,
) -> list[str]:
    """The lines of the summary. Paths below the working folder are shown relative to it.

    Args:
        restarts: how often each process was started again.
    """
    training = summarize_training(folder.metrics)
    verdict = {FINISHED: "finished", INTERRUPTED: "stopped"}.get(outcome.code, "FAILED")
    lines = ["", f"run {folder.run_id} {verdict}: {outcome.cause}"]
    if not outcome.finished and blamed_log is not None:
        lines += [f"  {line}" for line in error_lines(blamed_log)]
        lines.append(f"  whole log: {short_path(blamed_log)}")
    of = f" of {last.last}" if last.last is not None else ""
    reward = f"reward {number(training.first_reward)} -> {number(training.last_reward)}"
    lines.append(f"steps {training.steps}{of} in {clock(last.elapsed_s)}, {reward}")
    if restarts:
        lines.append("restarts: " + ", ".join(f"{name} {count}" for name, count in sorted(restarts.items())))
    validation = last_validation(folder.validation)
    if validation is not None:
        lines.append(f"validation {number(validation)}")
    lines += _places(folder)
    return [*lines, *_next(outcome, training, folder, tensorboard)]


def _places(folder: RunFolder) -> list[str]:
    places = [("logs", folder.logs)]
    if folder.metrics.is_file():
        places.append(("metrics", folder.metrics))
    places += [("checkpoint", path) for path in folder.checkpoints[-1:]]
    places += [("model", path) for path in folder.exports[-1:]]
    return [f"{name + ':':<12}{short_path(path)}" for name, path in places]


def _next(outcome: RunOutcome, training: TrainingSummary, folder: RunFolder, tensorboard: bool) -> Sequence[str]:
    weir = short_path(Path(".venv/bin/weir")) if Path(".venv/bin/weir").exists() else "weir"
    topics, run = folder.run_id, name_for_commands(folder)
    lines = ["next:"]
    if training.steps:
        version = training.last_step
        lines.append(f"  {weir} show trajectories --version {version} --text --limit 3 --run {run}")
        console = short_path(wrappers_folder() / "kafka-console-consumer.sh")
        lines.append(
            f"  {weir} broker start; {console} --topic {topics}.trajectories.v{version:08d} --from-beginning --timeout-ms 5000 \\"
        )
        options = " ".join(f"--formatter-property print.{name}" for name in ("key=true", "headers=true", "value=false"))
        lines.append(f"      {options}")
    else:
        lines.append(f"  {weir} show control status --run {run}")
    if tensorboard and training.steps:
        lines.append(f"  tensorboard --logdir {short_path(folder.path)}")
    if not outcome.finished and folder.checkpoints:
        lines.append(f"  launch/run_cluster.sh --resume {run}")
    return lines
