"""One rank of a replay: rank 0 carries out the plan (`replayer.py`), the others obey."""

from __future__ import annotations

from collections.abc import Mapping

from learner.checkpoint.manifest import determinism
from learner.commands import EndRank
from learner.ranks import Ranks
from learner.replay.plan import ReplayPlan
from learner.replay.replayer import Replayer
from learner.replay.report import ReplayReport
from learner.replay.sources.sealed import Source
from learner.replay.worker import ReplayWorker
from learner.session import FIRST_COLLECTIVE_S, join_ranks
from schemas.records.metrics import StepMetrics


def replay_rank(plan: ReplayPlan, source: Source | None, recorded: Mapping[int, StepMetrics], report: ReplayReport) -> int:
    """Run this rank to its end; returns the exit code. All ranks load the checkpoint.

    Args:
        source: None on all ranks but 0.
        recorded: what the run recorded of its steps, by step; empty on all ranks but 0.

    Raises:
        WeirError: a batch is not available as it was sealed, or the checkpoint does not hold what its manifest says.
    """
    config = plan.start_config
    join_ranks(config)
    ranks = Ranks(max(FIRST_COLLECTIVE_S, config.learner.rank_timeout_s))
    worker = ReplayWorker(config, plan.changed, ranks, plan.checkpoint)
    ranks.barrier()
    if source is None:
        return worker.obey()
    code = Replayer(plan, worker, source, recorded, report, determinism(config.learner)).run()
    ranks.send(EndRank(code))
    return code
