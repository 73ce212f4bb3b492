"""Where everything stands, for people: beats, what rank 0 waits for, the table of slots. Changes nothing."""

from __future__ import annotations

from learner.dispatcher.state.run_state import RunState
from learner.dispatcher.state.slots import SlotState
from schemas.records.status import Beat, OpenVersion

MOST_SLOTS = 16


def make_beat(s: RunState, number: int) -> Beat:
    """The next beat."""
    window = {}
    for version in sorted(s.window):
        slots = s.slots.get("rollout", version)
        if slots is not None:
            window[version] = OpenVersion(
                unassigned=slots.counts[SlotState.UNASSIGNED],
                assigned=slots.counts[SlotState.ASSIGNED],
                filled=slots.counts[SlotState.FILLED],
            )
    return Beat(
        uuid=s.plan.uuid,
        incarnation=s.plan.incarnation,
        number=number,
        waits_for=waits_for(s) if s.learner.asked and s.stop is None else "",
        lead=s.lead.value,
        window=window,
        counts=s.counters.totals(),
        failures=dict(s.counters.failures),
        refusals=dict(s.counters.refusals),
    )


def waits_for(s: RunState) -> str:
    """What rank 0 waits for."""
    if not s.roster.producers:
        return f"the first of {s.plan.producer_count} producers to join{refusals(s)}"
    if s.round is not None:
        return f"round {s.round.number} ({s.round.phase.value}): {', '.join(s.round.waiting_for()) or 'rank 0'}"
    if s.frontier is None:
        return f"{s.plan.producer_count} producers, {len(s.roster.producers)} joined"
    if s.validation.version is not None and s.version > s.frontier:
        return f"validation of version {s.validation.version}"
    slots = s.slots.get("rollout", s.version)
    if slots is None:
        return f"the seal of version {s.version}"
    missing = list(slots.missing())
    who = ", ".join(f"s{slot.index:04d} at {'/'.join(slot.holders) or 'nobody'}" for slot in missing[:4])
    return f"{len(missing)} of {len(slots.slots)} groups of version {s.version} ({who})"


def refusals(s: RunState) -> str:
    """Who was refused and why, to be added to a line; empty if nobody was."""
    refused = "; ".join(f"{name}: {problems[0]}" for name, problems in s.roster.members.refused.items())
    return f"; refused: {refused}" if refused else ""


def slot_table(s: RunState) -> list[str]:
    """The open versions and what became of the slots that are not filled, for the log of a run that makes no progress."""
    lines = []
    for slots in (*s.slots.versions("validation"), *s.slots.versions("rollout")):
        counts = ", ".join(f"{count} {state.value}" for state, count in slots.counts.items())
        lines.append(f"{slots.kind} version {slots.version}: {counts}")
        for slot in list(slots.missing())[:MOST_SLOTS]:
            history = "; ".join(slot.history) or "never issued"
            lines.append(f"  s{slot.index:04d} at {'/'.join(slot.holders) or 'nobody'}: {history}")
    for p in s.roster.producers.values():
        rate = f"{p.rate(s.clock.beat):.1f} tokens a beat"
        lines.append(
            f"{p.name}: {p.state.value}, holds {p.held}, {len(p.assigned)} of {p.capacity} in hand, {rate}, "
            f"heard {s.clock.beat - p.last_beat} beats ago{', suspect' if p.suspect else ''}{', draining' if p.draining else ''}"
        )
    return lines
