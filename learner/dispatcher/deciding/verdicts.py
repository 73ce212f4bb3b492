"""Reading the dispatcher's state for people: why the run must end, and what rank 0 waits for. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from learner.dispatcher.deciding.core import Dispatcher


@dataclass(frozen=True, slots=True)
class Verdict:
    """The run must end."""

    reason: str
    resumable: bool = True


def run_verdict(d: Dispatcher) -> Verdict | None:
    """Why the run cannot go on, naming the commonest cause; None while it can."""
    dispatch, n = d.plan.dispatch, d.plan.grpo.num_prompts_per_step
    if d.last == 0 and d.dataset is not None:
        return Verdict(f"the data set has {d.dataset.rows} rows, a step needs grpo.num_prompts_per_step={n}", resumable=False)
    outcomes = d.draw_outcomes
    if outcomes.failed > 2 * n:
        cause, times = outcomes.commonest()
        return Verdict(f"{outcomes.failed} of the last {len(outcomes)} draws failed, {times} with: {cause}")
    if not (d.learner_ready and d.asked):
        return None
    if d.beat - d.producer_beat > d.plan.beats(dispatch.no_producer_timeout_s):
        limit = f"{dispatch.no_producer_timeout_s:g} s (dispatch.no_producer_timeout_s)"
        return Verdict(f"no producer for {limit}, version {d.version}{_refused(d)}")
    if d.window and d.beat - d.progress_beat > d.plan.beats(dispatch.no_progress_timeout_s):
        limit = f"{dispatch.no_progress_timeout_s:g} s (dispatch.no_progress_timeout_s)"
        return Verdict(f"no group accepted for {limit}: {waits_for(d)}")
    return None


def waits_for(d: Dispatcher) -> str:
    """What rank 0 waits for."""
    if not d.roster.producers:
        return f"the first of {d.plan.producer_count} producers to join{_refused(d)}"
    if d.round is not None:
        return f"round {d.round.number} ({d.round.phase.value}): {', '.join(d.round.waiting_for()) or 'rank 0'}"
    if d.frontier is None:
        return f"{d.plan.producer_count} producers, {len(d.roster.producers)} joined"
    if d.validation.version is not None and d.version > d.frontier:
        return f"validation of version {d.validation.version}"
    slots = d.table.get("rollout", d.version)
    if slots is None:
        return f"the seal of version {d.version}"
    missing = list(slots.missing())
    who = ", ".join(f"s{s.index:04d} at {'/'.join(s.holders) or 'nobody'}" for s in missing[:4])
    return f"{len(missing)} of {len(slots.slots)} groups of version {d.version} ({who})"


def _refused(d: Dispatcher) -> str:
    refused = "; ".join(f"{name}: {problems[0]}" for name, problems in d.roster.refused.items())
    return f"; refused: {refused}" if refused else ""
