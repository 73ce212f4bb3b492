"""Why a run must end by itself, with the commonest cause named. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from learner.dispatcher.deciding.reporting import refusals, waits_for
from learner.dispatcher.state.run_state import RunState


@dataclass(frozen=True, slots=True)
class Verdict:
    """The run must end."""

    reason: str
    resumable: bool = True


def run_verdict(s: RunState) -> Verdict | None:
    """Why the run cannot continue; None while it can."""
    dispatch, n = s.plan.dispatch, s.plan.grpo.num_prompts_per_step
    if s.last_version == 0 and s.dataset is not None:
        return Verdict(f"the data set has {s.dataset.rows} rows, a step needs grpo.num_prompts_per_step={n}", resumable=False)
    outcomes = s.draw_outcomes
    if outcomes.failed > 2 * n:
        cause, times = outcomes.commonest()
        return Verdict(f"{outcomes.failed} of the last {len(outcomes)} draws failed, {times} with: {cause}")
    if not (s.learner.ready and s.learner.asked):
        return None
    if s.clock.beat - s.clock.producer > s.plan.beats(dispatch.no_producer_timeout_s):
        limit = f"{dispatch.no_producer_timeout_s:g} s (dispatch.no_producer_timeout_s)"
        return Verdict(f"no producer for {limit}, version {s.version}{refusals(s)}")
    if s.window and s.clock.beat - s.clock.progress > s.plan.beats(dispatch.no_progress_timeout_s):
        limit = f"{dispatch.no_progress_timeout_s:g} s (dispatch.no_progress_timeout_s)"
        return Verdict(f"no group accepted for {limit}: {waits_for(s)}")
    return None
