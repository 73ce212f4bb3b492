"""A run in detail, as `weir status` prints it: open versions, producers, the last rounds, and counters. Only formats."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from launch.observe.formats import clock, number
from launch.observe.rounds_view import RoundRow
from launch.observe.run_view import RunSnapshot
from launch.observe.tables import headline, make_table, process_table, remarks, training_table


def render_details(s: RunSnapshot) -> Group:
    """All that the topics hold. Parts of which nothing is known are left out."""
    parts: list[RenderableType] = [headline(s), *_standing(s), training_table(s), process_table(s)]
    if s.window:
        parts += [Text(), _window(s)]
    if s.rounds:
        parts += [Text(), _rounds(s)]
    parts += [error for row in s.rounds for error in _errors(row)]
    counts = [line for line in (_counted("counted", s.counts), _counted("failures", s.failures)) if line]
    counts += [line for line in (_counted("refused records", s.refusals),) if line]
    if counts:
        parts += [Text(), *(Text(line) for line in counts)]
    return Group(*parts, *remarks(s))


def _standing(s: RunSnapshot) -> list[Text]:
    """How far the run is, and what it waits for."""
    if s.incarnation is None:
        return []
    parts = [f"frontier {_or_dash(s.frontier)}", f"sealed through {_or_dash(s.sealed_through)}", f"lead {_or_dash(s.lead)}"]
    parts.append(f"incarnation {s.incarnation}")
    if s.beat is not None:
        parts.append(f"beat {s.beat.number}, {_ago(s.beat.silent_s)}")
    lines = [Text("   ".join(parts))]
    if s.stop is not None:
        how = "finished" if s.stop.finished else "can be resumed" if s.stop.resumable else "cannot be resumed"
        lines.append(Text(f"stopped at {s.stop.version}: {s.stop.reason} ({how})"))
    elif s.waits_for:
        lines.append(Text(f"waits for {s.waits_for}", style="yellow"))
    if s.validating:
        lines.append(Text(f"validates version {', '.join(map(str, s.validating))}"))
    return lines


def _window(s: RunSnapshot) -> Table:
    table = make_table("open version", "unassigned", "assigned", "filled", "rollouts in hand")
    for row in s.window:
        holders = ", ".join(f"{name}: {count}" for name, count in row.holders.items())
        table.add_row(str(row.version), _or_dash(row.unassigned), _or_dash(row.assigned), _or_dash(row.filled), holders)
    return table


def _rounds(s: RunSnapshot) -> Table:
    table = make_table("round", "version", "members", "phase", "pause s", "transfer s", "load s", "loaded", "failed")
    for row in s.rounds:
        over = row.phase == "done"
        table.add_row(
            str(row.number),
            str(row.version),
            str(len(row.members)),
            row.phase,
            number(row.pause_s, ".2f"),
            number(row.transfer_s, ".2f"),
            number(row.load_s, ".2f"),
            str(row.loaded) if over else "-",
            str(row.failed) if over else "-",
        )
    return table


def _errors(row: RoundRow) -> list[Text]:
    return [Text(f"round {row.number} failed at {name}: {why}", style="red") for name, why in row.errors.items()]


def _counted(title: str, counts: dict[str, int]) -> str:
    return f"{title}: " + "   ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items()) if counts else ""


def _or_dash(value: int | None) -> str:
    return "-" if value is None or value < 0 else str(value)


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds < 60 else f"{clock(seconds)} ago"
