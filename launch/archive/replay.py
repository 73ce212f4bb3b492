"""`weir replay`: the processes that train steps again, as many as the run had, and what they report."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from broker_config.locate import ENVIRONMENT
from launch.observe.logtail import error_lines
from launch.processes.children import Child
from launch.processes.specs import ONE_NODE, ProcessSpec, process_environment
from learner.replay.plan import ReplayPlan, ReplayRequest
from schemas.errors import WeirError

GRACE_S = 5.0
POLL_S = 0.1


def run_replay(
    request: ReplayRequest,
    plan: ReplayPlan,
    bootstrap: str | None,
    print_line: Callable[[str], None],
    print_error: Callable[[str], None],
    keep_open: Sequence[int] = (),
) -> int:
    """Run a replay to its end; returns its exit code (0 as recorded, 1 not, 2 wrong input).

    Args:
        bootstrap: the run's broker, None for a dump.
        print_line, print_error: where the lines of the report go, and its errors.
        keep_open: file descriptors that the processes hold while they live.

    Raises:
        WeirError: the processes ended without reporting why.
    """
    with tempfile.TemporaryDirectory(prefix="weir-replay-") as made:
        report = Path(made) / "report.jsonl"
        report.touch()
        env = replay_environment(Path(made), bootstrap)
        words = replay_command(request, plan.start_config.learner.nproc, report, verified=plan.index is not None)
        spec = ProcessSpec("replay", words, env, Path(made) / "replay.log", GRACE_S)
        child = Child(spec, Path.cwd(), keep_open)
        try:
            for entry in follow_report(report, lambda: child.poll() is not None):
                if "line" in entry:
                    print_line(entry["line"])
                    continue
                for error in entry["errors"]:
                    print_error(f"error: {error}")
                return int(entry["end"])
        finally:
            child.kill()
            while child.poll() is None:
                time.sleep(POLL_S)
        lines = "\n".join(f"  {line}" for line in error_lines(spec.log))
        raise WeirError(f"the replay's process ended with code {child.poll()}:\n{lines}")


def replay_environment(made: Path, bootstrap: str | None) -> dict[str, str]:
    """Environment of the processes. Their temporary files are in `made`, which is removed with the command, even if they are
    killed."""
    return process_environment(os.environ, {"TMPDIR": str(made)} | ({} if bootstrap is None else {ENVIRONMENT: bootstrap}))


def follow_report(report: Path, over: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """The entries of a report as they come, until `over`; a last entry that was cut off is left out."""
    with report.open(encoding="utf-8") as lines:
        rest = ""
        while True:
            last = over()
            rest += lines.read()
            *whole, rest = rest.split("\n")
            yield from map(json.loads, whole)
            if last:
                return
            time.sleep(POLL_S)


def replay_command(request: ReplayRequest, nproc: int, report: Path, *, verified: bool = False) -> list[str]:
    """The command of the processes. A single one needs no torchrun, whose start takes seconds.

    `verified`: the dump's files were hashed already.
    """
    several = ["-m", "torch.distributed.run", *ONE_NODE, "--nproc-per-node", str(nproc)]
    words = [sys.executable, *(several if nproc > 1 else []), "-m", "learner.replay", str(request.folder)]
    for name, value in (("--step", request.step), ("--to", request.to), ("--group", request.group), ("--report", report)):
        words += [name, str(value)] if value is not None else []
    for one in request.overrides:
        words += ["--set", one]
    if verified:
        words.append("--verified")
    return words
