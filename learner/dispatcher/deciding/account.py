"""What the dispatcher tells others of itself: the control state, and where everything stands for people. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.dispatcher.deciding.slots import SlotState
from schemas.records.control import State
from schemas.records.status import Beat, OpenVersion

if TYPE_CHECKING:
    from learner.dispatcher.deciding.core import Dispatcher


def facts_of(d: Dispatcher) -> tuple[object, ...]:
    """What the state is made of, cheap to compare: a state is built only when one of these changed."""
    version = d.validation.version
    return (
        d.frontier,
        d.weights_digest,
        d.sealed_through,
        d.last,
        tuple(d.window),
        version,
        d.topics.get(("validation", version)) if version is not None else None,
        d.dataset,
        d.roster.revision,
        None if d.round is None else (d.round.number, d.round.phase, len(d.round.failed)),
        d.stop,
    )


def state_of(d: Dispatcher) -> State:
    """All that holds, as published on `control`."""
    version = d.validation.version
    validation_topic = None if version is None else d.topics.get(("validation", version))
    return State(
        uuid=d.plan.uuid,
        incarnation=d.plan.incarnation,
        config_digest=d.plan.config_digest,
        frontier=d.frontier,
        weights_digest=d.weights_digest,
        sealed_through=d.sealed_through,
        last_version=d.last,
        window=dict(sorted(d.window.items())),
        validations={version: validation_topic} if version is not None and validation_topic else {},
        dataset=d.dataset,
        members=d.roster.members(d.round.members if d.round else ()),
        refused=dict(d.roster.refused),
        round=d.round.record() if d.round else None,
        stop=d.stop,
    )


def beat_of(d: Dispatcher, number: int) -> Beat:
    window = {}
    for version in sorted(d.window):
        slots = d.table.get("rollout", version)
        if slots is not None:
            window[version] = OpenVersion(
                unassigned=slots.counts[SlotState.UNASSIGNED],
                assigned=slots.counts[SlotState.ASSIGNED],
                filled=slots.counts[SlotState.FILLED],
            )
    return Beat(
        uuid=d.plan.uuid,
        incarnation=d.plan.incarnation,
        number=number,
        waits_for=d.waits_for() if d.asked and d.stop is None else "",
        lead=d.lead,
        window=window,
        counts=d.counters.totals(),
        failures=dict(d.counters.failures),
        refusals=dict(d.counters.refusals),
    )


def slot_table(d: Dispatcher, most: int = 16) -> list[str]:
    """The open versions and what became of the slots that are not filled, for the log of a run that does not get on."""
    lines = []
    for slots in (*d.table.versions("validation"), *d.table.versions("rollout")):
        counts = ", ".join(f"{count} {state.value}" for state, count in slots.counts.items())
        lines.append(f"{slots.kind} version {slots.version}: {counts}")
        for slot in list(slots.missing())[:most]:
            lines.append(
                f"  s{slot.index:04d} at {'/'.join(slot.holders) or 'nobody'}: {'; '.join(slot.story) or 'never issued'}"
            )
    for p in d.roster.producers.values():
        rate = f"{p.rate(d.beat):.1f} tokens a beat"
        lines.append(
            f"{p.name}: {p.state.value}, holds {p.held}, {len(p.assigned)} of {p.capacity} in hand, {rate}, "
            f"heard {d.beat - p.last_beat} beats ago{', suspect' if p.suspect else ''}{', draining' if p.draining else ''}"
        )
    return lines
