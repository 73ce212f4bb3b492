"""Showing snapshots: a live table on a terminal, plain lines elsewhere. Both only format; the supervisor feeds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from launch.observe.view import OpenRow, Snapshot

SIGN_OF_LIFE_S = 5.0
_BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40


class Display(Protocol):
    """Where snapshots go."""

    def show(self, snapshot: Snapshot) -> None: ...

    def say(self, line: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None: ...


def make_display(console: Console, draw: Callable[[Snapshot], RenderableType] | None = None) -> Display:
    """A live table (drawn by `draw`, or the short one) if the console is a terminal, else plain lines."""
    return LiveTable(console, draw) if console.is_terminal and not console.is_dumb_terminal else PlainLines(console)


def sparkline(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """Values as a row of bars between their lowest and highest; more than `width` are averaged in equal parts."""
    if not values:
        return ""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    if high - low < 1e-12:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(7, int((value - low) / (high - low) * 8))] for value in values)


def clock(seconds: float) -> str:
    """`1:02:03`, or `2:03` below an hour."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def number(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)


def share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


class LiveTable:
    """One table, redrawn in place.

    Args:
        draw: what a snapshot looks like.
    """

    def __init__(self, console: Console, draw: Callable[[Snapshot], RenderableType] | None = None) -> None:
        self._console = console
        self._draw = draw or render
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        self._live.update(self._draw(snapshot), refresh=True)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def close(self) -> None:
        self._live.stop()


def render(s: Snapshot) -> Group:
    """The live table of a snapshot. `launch/observe/details.py` has the long one."""
    training = training_table(s)
    if any(row.filled is not None for row in s.window):
        training.add_row("window", "", "   ".join(f"{row.version}: {filled(row)}" for row in s.window))
    return Group(head(s), training, process_table(s), *remarks(s))


def head(s: Snapshot) -> Text:
    text = Text.assemble(("weir ", "bold"), s.run_id, f"   step {s.steps}/{s.last if s.last is not None else '?'}")
    text.append(f"   {clock(s.elapsed_s)} elapsed" + (f", {clock(s.eta_s)} to go" if s.eta_s is not None else ""))
    return text


def training_table(s: Snapshot) -> Table:
    training = Table.grid(padding=(0, 2))
    training.add_row("reward", number(s.reward), Text(sparkline(s.rewards), style="cyan"))
    training.add_row("loss", number(s.loss, ".4f"), f"age {number(s.age, '.2f')}   step {number(s.step_s, '.2f')} s")
    training.add_row("tokens/s", number(s.tokens_per_s, ".0f"), f"learner waits {share(s.idle_share)} of its time")
    if s.validation is not None:
        training.add_row("validation", number(s.validation), "")
    return training


def filled(row: OpenRow) -> str:
    """`12/16 filled`; `?` before the learner has told."""
    if row.filled is None:
        return "?"
    return f"{row.filled}/{row.filled + (row.assigned or 0) + (row.unassigned or 0)} filled"


def process_table(s: Snapshot) -> Table:
    processes = make_table("process", "does", "version", "requests", "tokens/s", "last heard")
    processes.add_row("broker", s.broker, "", "", "", "")
    processes.add_row("learner", _learner(s), "", "", "", "")
    for row in s.producers:
        silent = f"{row.silent_s:.0f} s ago"
        held = str(row.version) if row.version >= 0 else "-"
        processes.add_row(row.name, row.state, held, f"{row.in_hand}/{row.capacity}", f"{row.tokens_per_s:.0f}", silent)
    for name, doing in _not_joined(s):
        processes.add_row(name, doing, "", "", "", "")
    return processes


def make_table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title)
    return table


def _learner(s: Snapshot) -> str:
    started = s.processes.get("learner-0")
    return f"{s.learner} ({started})" if started and s.learner == "starting" else s.learner


def _not_joined(s: Snapshot) -> list[tuple[str, str]]:
    """Processes that this supervisor started and that have not shown up on the topics."""
    joined = [row.name for row in s.producers]
    return [
        (name, doing)
        for name, doing in s.processes.items()
        if name != "learner-0" and not any(known.startswith(f"{name}-") for known in joined)
    ]


def remarks(s: Snapshot) -> list[Text]:
    told = [Text(f"refused {name}: {'; '.join(why)}", style="red") for name, why in s.refused.items()]
    if s.failed:
        told.append(Text(f"{s.failed} requests failed and were issued again", style="yellow"))
    return told


class PlainLines:
    """One line a step, one a change of what processes do, and a sign of life when nothing else was said."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps = 0
        self._members: dict[str, str] = {}
        self._learner = ""
        self._refused: set[str] = set()
        self._said_at = 0.0

    def show(self, snapshot: Snapshot) -> None:
        for line in self.lines(snapshot):
            self.say(line)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is held."""

    def lines(self, s: Snapshot) -> list[str]:
        """What is new since the last snapshot."""
        stamp = f"[{clock(s.elapsed_s)}]"
        found = [f"{stamp} {line}" for line in (*self._membership(s), *self._phase(s), *self._step(s))]
        if not found and s.elapsed_s - self._said_at >= SIGN_OF_LIFE_S:
            found = [f"{stamp} {waiting(s)}"]
        if found:
            self._said_at = s.elapsed_s
        return found

    def _membership(self, s: Snapshot) -> list[str]:
        now = {row.name: row.state for row in s.producers}
        # Pausing is part of every step; only coming, going and the first weights are news.
        news = [f"{name} {state}" for name, state in now.items() if _settled(self._members.get(name)) != _settled(state)]
        news += [f"{name} left" for name in self._members if name not in now]
        self._members = now
        for name, why in s.refused.items():
            if name not in self._refused:
                self._refused.add(name)
                news.append(f"refused {name}: {'; '.join(why)}")
        return news

    def _phase(self, s: Snapshot) -> list[str]:
        if s.learner == self._learner:
            return []
        self._learner = s.learner
        told = s.steps == 0 or s.stop is not None  # later the lines of steps tell enough
        return [f"learner {s.learner}"] if told else []

    def _step(self, s: Snapshot) -> list[str]:
        if s.steps == self._steps:
            return []
        self._steps = s.steps
        values = [f"reward {number(s.reward)}", f"loss {number(s.loss, '.4f')}", f"age {number(s.age, '.2f')}"]
        values += [f"{number(s.tokens_per_s, '.0f')} tokens/s", f"waits {share(s.idle_share)}"]
        if s.validation is not None:
            values.append(f"validation {number(s.validation)}")
        if s.eta_s is not None:
            values.append(f"{clock(s.eta_s)} to go")
        return [f"step {s.steps}/{s.last if s.last is not None else '?'}  " + "  ".join(values)]


def _settled(state: str | None) -> str | None:
    return "serving" if state == "paused" else state


def waiting(s: Snapshot) -> str:
    """What the run waits for now."""
    parts = [f"learner {_learner(s)}"]
    parts += [f"{name} {doing}" for name, doing in _not_joined(s)]
    parts += [f"{row.name} {row.state} ({row.in_hand} requests, {row.tokens_per_s:.0f} tokens/s)" for row in s.producers]
    return "; ".join(parts)
