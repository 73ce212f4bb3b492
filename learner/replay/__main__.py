"""Train steps of a run again and compare; `weir replay` starts this, under torchrun where the run had several processes.

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
from learner.replay.plan import Asked, Job, make_job
from learner.replay.report import DIFFERS, WRONG_INPUT, Report
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
    parser.add_argument("--report", type=Path, help="write what is told into this file, as JSON lines")
    given = parser.parse_args()
    logs.configure("WARNING")
    die_with_parent()
    # Rank 0 hashes the files of a dump, and the others load nothing before it has joined them.
    asked = Asked(given.folder, given.step, given.to, given.group, given.sets, given.verified or _rank() != 0)
    report = Report(given.report if _rank() == 0 else None)
    try:
        code = replay(asked, report)
    except ConfigError as error:
        return _failed(report, WRONG_INPUT, [str(problem) for problem in error.problems])
    except WeirError as error:
        return _failed(report, DIFFERS, [str(error)])
    return report.end(code) if _rank() == 0 else code


def replay(asked: Asked, report: Report) -> int:
    """
    Raises:
        WeirError: what was asked for is not there, or not as it was.
    """
    job = make_job(asked)
    # Set before torch is imported: its libraries read it once.
    os.environ["OMP_NUM_THREADS"] = str(job.present.learner.threads or job.manifest.determinism.threads)
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    source = ReadAhead(open_source(job), job.last) if _rank() == 0 else None
    outcomes: Mapping[int, StepMetrics] = {}
    if source is not None:
        outcomes = source.outcomes()
        for option, value, steps in asked.steps:
            check_trained(steps, outcomes, option, value, source.where)
        if job.group is not None:
            record_of(source.batch(job.group.version), job.group)  # what cannot be shown is told before anything is trained
        source.batch(job.manifest.version)  # a damaged record is told before torch is imported
        for line in head(job, source):
            report.line(line)
    from learner.replay.session import serve

    code = serve(job, source, outcomes, report)
    if source is not None:
        source.close()
    return code


def open_source(job: Job) -> Source:
    """The dump, or the run's broker."""
    if job.index is not None:
        return DumpSource(job.folder, job.index)
    kafka = job.config.kafka
    bootstrap = locate.bootstrap_servers(kafka, Deadline(kafka.timeout_s))
    return LogSource(kafka, bootstrap, job.config.run_id, job.manifest.run, job.config.grpo.num_prompts_per_step, job.topic_ids)


def head(job: Job, source: Source) -> list[str]:
    told = [f"note: {note}" for note in job.notes]
    if job.config.digest != job.manifest.config_digest:
        told.append(
            f"note: the config's digest is {job.config.digest}, the checkpoint was written under "
            f"{job.manifest.config_digest}: {job.folder / 'config.yaml'} or the program has changed since"
        )
    again = ""
    if job.manifest.version < job.first:
        several = job.manifest.version < job.first - 1
        again = f", with {f'steps {job.manifest.version} to' if several else 'step'} {job.first - 1} on the way"
    told.append(f"from {job.checkpoint}{again}; records: {source.where}")
    if job.changed is not None:
        told.append(f"from step {job.first} on with the changed config: recorded -> changed")
    return told


def _failed(report: Report, code: int, errors: list[str]) -> int:
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
