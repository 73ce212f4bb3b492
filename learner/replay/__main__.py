"""Train steps of a run again and compare. `weir replay` starts this, under torchrun if the run had several processes.

torchrun --nproc-per-node K -m learner.replay RUN_FOLDER --step 12 [--to 20] [--group v00000012/s0031] [--set key=value ...]

RUN_FOLDER is a run's folder or a dump. Exit codes: 0 all is as recorded, 1 something differs or failed, 2 wrong input.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from broker_config import locate, logs
from broker_config.deadline import Deadline
from broker_config.lifeline import die_with_parent
from learner.replay.plan import ReplayPlan, ReplayRequest, plan_replay
from learner.replay.report import DIFFERS, WRONG_INPUT, ReplayReport
from learner.replay.sources.ahead import ReadAhead
from learner.replay.sources.dump import DumpSource
from learner.replay.sources.log import LogSource
from learner.replay.sources.sealed import Source, check_trained
from learner.replay.tokens import record_of
from schemas.errors import ConfigError, WeirError
from schemas.records.metrics import StepMetrics

log = logging.getLogger("learner.replay")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m learner.replay", description="Train steps of a run again, and compare.")
    parser.add_argument("folder", type=Path, help="a run's folder, or a dump")
    parser.add_argument("--step", type=int, help="version to train again")
    parser.add_argument("--to", type=int, help="last version to train again")
    parser.add_argument("--group", help="show one group token by token instead, such as v00000012/s0031")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="key=value", help="change the config")
    parser.add_argument("--verified", action="store_true", help="the files of the dump were hashed already")
    parser.add_argument("--report", type=Path, help="write the report into this file, as JSON lines")
    given = parser.parse_args()
    logs.configure("WARNING")
    die_with_parent()
    # Rank 0 hashes the files of a dump, and the others load nothing before it has joined them.
    request = ReplayRequest(given.folder, given.step, given.to, given.group, given.sets, given.verified or _rank() != 0)
    report = ReplayReport(given.report if _rank() == 0 else None)
    try:
        code = replay(request, report)
    except ConfigError as error:
        return _failed(report, WRONG_INPUT, [str(problem) for problem in error.problems])
    except WeirError as error:
        return _failed(report, DIFFERS, [str(error)])
    return report.end(code) if _rank() == 0 else code


def replay(request: ReplayRequest, report: ReplayReport) -> int:
    """Carry out a request on this rank; returns the exit code.

    Raises:
        ConfigError: wrong input.
        WeirError: the requested steps are not available, or not as they were.
    """
    plan = plan_replay(request)
    # Set before torch is imported: its libraries read it once.
    os.environ["OMP_NUM_THREADS"] = str(plan.start_config.learner.threads or plan.manifest.determinism.threads)
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    source = ReadAhead(open_source(plan), plan.last) if _rank() == 0 else None
    recorded: Mapping[int, StepMetrics] = {}
    if source is not None:
        recorded = source.step_metrics()
        for option, value, steps in request.steps:
            check_trained(steps, recorded, option, value, source.where)
        if plan.group is not None:
            record_of(source.batch(plan.group.version), plan.group)  # a wrong --group is reported before anything is trained
        source.batch(plan.manifest.version)  # a damaged record is reported before torch is imported
        for line in head(plan, source):
            report.line(line)
    from learner.replay.session import replay_rank

    code = replay_rank(plan, source, recorded, report)
    if source is not None:
        source.close()
    return code


def open_source(plan: ReplayPlan) -> Source:
    """The dump, or the run's broker."""
    if plan.index is not None:
        return DumpSource(plan.folder, plan.index)
    config, kafka = plan.config, plan.config.kafka
    bootstrap = locate.bootstrap_servers(kafka, Deadline(kafka.timeout_s))
    return LogSource(kafka, bootstrap, config.run_id, plan.manifest.run, config.grpo.num_prompts_per_step, plan.topic_ids)


def head(plan: ReplayPlan, source: Source) -> list[str]:
    """The first lines of the report: notes, and what is trained from where."""
    lines = [f"note: {note}" for note in plan.notes]
    if plan.config.digest != plan.manifest.config_digest:
        lines.append(
            f"note: the config's digest is {plan.config.digest}, the checkpoint was written under "
            f"{plan.manifest.config_digest}: {plan.folder / 'config.yaml'} or the program has changed since"
        )
    again = ""
    if plan.manifest.version < plan.first:
        several = plan.manifest.version < plan.first - 1
        again = f", with {f'steps {plan.manifest.version} to' if several else 'step'} {plan.first - 1} on the way"
    lines.append(f"from {plan.checkpoint}{again}; records: {source.where}")
    if plan.changed is not None:
        lines.append(f"from step {plan.first} on with the changed config: recorded -> changed")
    return lines


def _failed(report: ReplayReport, code: int, errors: list[str]) -> int:
    if _rank() == 0:
        return report.end(code, errors)
    for error in errors:
        log.error("%s", error)
    return code


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)  # torch's and gloo's threads must not keep a finished rank alive
