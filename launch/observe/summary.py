"""What a person reads when a run has ended: what came of it, why it ended, where everything is, what to try next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_config.local.tools import wrappers_folder
from launch.folders import RunFolder, last_validation
from launch.observe.display import clock, number
from launch.observe.logtail import error_lines
from launch.observe.view import Snapshot
from launch.supervise.outcome import FINISHED, INTERRUPTED, Outcome

REWARD = "train/reward"


@dataclass(frozen=True, slots=True)
class Trained:
    """What `metrics.jsonl` holds: number of steps, the last one, first and last reward."""

    steps: int = 0
    last_step: int = -1
    first_reward: float | None = None
    last_reward: float | None = None


def trained(metrics: Path) -> Trained:
    """Read from the file, which is there when the topics are not; a last line that was cut off is left out."""
    steps: set[int] = set()
    rewards: list[float] = []
    try:
        lines = metrics.read_text(encoding="utf-8").splitlines()
    except OSError:
        return Trained()
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        steps.add(int(record["step"]))
        if isinstance(record.get(REWARD), int | float):
            rewards.append(float(record[REWARD]))
    return Trained(len(steps), max(steps, default=-1), rewards[0] if rewards else None, rewards[-1] if rewards else None)


def summarize(
    outcome: Outcome,
    last: Snapshot,
    folder: RunFolder,
    *,
    tensorboard: bool,
    blamed_log: Path | None,
    restarts: Mapping[str, int] | None = None,
) -> list[str]:
    """The lines of the summary. Paths are shown relative to the working folder where they lie below it.

    Args:
        restarts: how often each process was started again after it had died.
    """
    came = trained(folder.metrics)
    verdict = {FINISHED: "finished", INTERRUPTED: "stopped"}.get(outcome.code, "FAILED")
    lines = ["", f"run {folder.run_id} {verdict}: {outcome.cause}"]
    if not outcome.finished and blamed_log is not None:
        lines += [f"  {line}" for line in error_lines(blamed_log)]
        lines.append(f"  whole log: {shown(blamed_log)}")
    of = f" of {last.last}" if last.last is not None else ""
    lines.append(
        f"steps {came.steps}{of} in {clock(last.elapsed_s)}, reward {number(came.first_reward)} -> {number(came.last_reward)}"
    )
    if restarts:
        lines.append("restarts: " + ", ".join(f"{name} {count}" for name, count in sorted(restarts.items())))
    validation = last_validation(folder.validation)
    if validation is not None:
        lines.append(f"validation {number(validation)}")
    lines += _places(folder)
    return [*lines, *_next(outcome, came, folder, tensorboard)]


def _places(folder: RunFolder) -> list[str]:
    places = [("logs", folder.logs)]
    if folder.metrics.is_file():
        places.append(("metrics", folder.metrics))
    places += [("checkpoint", path) for path in folder.checkpoints[-1:]]
    places += [("model", path) for path in folder.exports[-1:]]
    return [f"{name + ':':<12}{shown(path)}" for name, path in places]


def _next(outcome: Outcome, came: Trained, folder: RunFolder, tensorboard: bool) -> Sequence[str]:
    weir = shown(Path(".venv/bin/weir")) if Path(".venv/bin/weir").exists() else "weir"
    topics, run = folder.run_id, name_of(folder)
    lines = ["next:"]
    if came.steps:
        version = came.last_step
        lines.append(f"  {weir} show trajectories --version {version} --text --limit 3 --run {run}")
        console = shown(wrappers_folder() / "kafka-console-consumer.sh")
        lines.append(
            f"  {weir} broker start; {console} --topic {topics}.trajectories.v{version:08d} --from-beginning --timeout-ms 5000 \\"
        )
        options = " ".join(f"--formatter-property print.{name}" for name in ("key=true", "headers=true", "value=false"))
        lines.append(f"      {options}")
    else:
        lines.append(f"  {weir} show control status --run {run}")
    if tensorboard and came.steps:
        lines.append(f"  tensorboard --logdir {shown(folder.path)}")
    if not outcome.finished and folder.checkpoints:
        lines.append(f"  launch/run_cluster.sh --resume {run}")
    return lines


def name_of(folder: RunFolder) -> str:
    """What names a run to `--run` and `--resume`: its id, or its folder when that is not in `runs/`, where ids are looked for."""
    return folder.run_id if folder.path.parent.resolve() == Path("runs").resolve() else shown(folder.path)


def shown(path: Path) -> str:
    """A path as short as it can be typed from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
