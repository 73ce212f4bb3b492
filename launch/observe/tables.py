"""A snapshot as the tables of the live view. Only formats."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from launch.observe.formats import clock, number, share, sparkline
from launch.observe.run_view import OpenVersionRow, RunSnapshot
from launch.outcome import LEARNER


def render_table(s: RunSnapshot) -> Group:
    """The live table; `launch/observe/details.py` has the long form."""
    training = training_table(s)
    if any(row.filled is not None for row in s.window):
        training.add_row("window", "", "   ".join(f"{row.version}: {filled(row)}" for row in s.window))
    return Group(headline(s), training, process_table(s), *remarks(s))


def headline(s: RunSnapshot) -> Text:
    text = Text.assemble(("weir ", "bold"), s.run_id, f"   step {s.steps}/{s.last if s.last is not None else '?'}")
    text.append(f"   {clock(s.elapsed_s)} elapsed" + (f", {clock(s.eta_s)} to go" if s.eta_s is not None else ""))
    return text


def training_table(s: RunSnapshot) -> Table:
    training = Table.grid(padding=(0, 2))
    training.add_row("reward", number(s.reward), Text(sparkline(s.rewards), style="cyan"))
    training.add_row("loss", number(s.loss, ".4f"), f"age {number(s.age, '.2f')}   step {number(s.step_s, '.2f')} s")
    training.add_row("tokens/s", number(s.tokens_per_s, ".0f"), f"learner waits {share(s.idle_share)} of its time")
    if s.validation is not None:
        training.add_row("validation", number(s.validation), "")
    return training


def filled(row: OpenVersionRow) -> str:
    """`12/16 filled`; `?` before the learner has reported it."""
    if row.filled is None:
        return "?"
    return f"{row.filled}/{row.filled + (row.assigned or 0) + (row.unassigned or 0)} filled"


def process_table(s: RunSnapshot) -> Table:
    processes = make_table("process", "doing", "version", "requests", "tokens/s", "last heard")
    processes.add_row("broker", s.broker, "", "", "", "")
    processes.add_row("learner", learner_phase(s), "", "", "", "")
    for row in s.producers:
        silent = f"{row.silent_s:.0f} s ago"
        held = str(row.version) if row.version >= 0 else "-"
        processes.add_row(row.name, row.state, held, f"{row.in_hand}/{row.capacity}", f"{row.tokens_per_s:.0f}", silent)
    for name, doing in not_joined(s):
        processes.add_row(name, doing, "", "", "", "")
    return processes


def make_table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title)
    return table


def learner_phase(s: RunSnapshot) -> str:
    """What the learner is doing; while it starts, as far as its process is known."""
    started = s.processes.get(LEARNER)
    return f"{s.learner} ({started})" if started and s.learner == "starting" else s.learner


def not_joined(s: RunSnapshot) -> list[tuple[str, str]]:
    """Processes that this supervisor started and that have not shown up on the topics yet, with what they are doing."""
    joined = [row.name for row in s.producers]
    return [
        (name, doing)
        for name, doing in s.processes.items()
        if name != LEARNER and not any(known.startswith(f"{name}-") for known in joined)
    ]


def remarks(s: RunSnapshot) -> list[Text]:
    found = [Text(f"refused {name}: {'; '.join(why)}", style="red") for name, why in s.refused.items()]
    if s.failed:
        found.append(Text(f"{s.failed} requests failed and were issued again", style="yellow"))
    return found
