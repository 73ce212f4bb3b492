"""One rank of a replay: rank 0 loads the checkpoint and takes its course (`course.py`), the others obey."""

from __future__ import annotations

from collections.abc import Mapping

from learner.checkpoint.manifest import determinism
from learner.commands import EndRank
from learner.ranks import Ranks
from learner.replay.course import Course
from learner.replay.plan import Job
from learner.replay.report import Report
from learner.replay.sources.sealed import Source
from learner.replay.worker import ReplayWorker
from learner.session import FIRST_COLLECTIVE_S, join_ranks
from schemas.records.metrics import StepMetrics


def serve(job: Job, source: Source | None, outcomes: Mapping[int, StepMetrics], report: Report) -> int:
    """`source`: None on all ranks but 0. Returns the exit code.

    Raises:
        WeirError: a batch cannot be had as it was sealed, or the checkpoint does not hold what its manifest says.
    """
    run = job.present
    join_ranks(run)
    ranks = Ranks(max(FIRST_COLLECTIVE_S, run.learner.rank_timeout_s))
    worker = ReplayWorker(run, job.changed, ranks, job.checkpoint)
    ranks.barrier()
    if source is None:
        return worker.obey()
    code = Course(job, worker, source, outcomes, report, determinism(run.learner)).run()
    ranks.send(EndRank(code))
    return code
