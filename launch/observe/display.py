"""Where snapshots are shown: a live table on a terminal, plain lines elsewhere. The supervisor, or a command, feeds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from launch.observe.formats import clock, number, share
from launch.observe.run_view import RunSnapshot
from launch.observe.tables import learner_phase, not_joined, render_table

SIGN_OF_LIFE_S = 5.0


class Display(Protocol):
    """Where snapshots go."""

    def show(self, snapshot: RunSnapshot) -> None: ...

    def say(self, line: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None: ...


def make_display(console: Console, draw: Callable[[RunSnapshot], RenderableType] | None = None) -> Display:
    """A live table (drawn by `draw`, or the short one) if the console is a terminal, else plain lines."""
    return LiveTable(console, draw) if console.is_terminal and not console.is_dumb_terminal else PlainLines(console)


class LiveTable:
    """One table, redrawn in place.

    Args:
        draw: what a snapshot looks like.
    """

    def __init__(self, console: Console, draw: Callable[[RunSnapshot], RenderableType] | None = None) -> None:
        self._console = console
        self._draw = draw or render_table
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, snapshot: RunSnapshot) -> None:
        self._live.update(self._draw(snapshot), refresh=True)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def close(self) -> None:
        self._live.stop()


class PlainLines:
    """One line a step, one a change of what processes do, and a sign of life when there was no other line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps = 0
        self._members: dict[str, str] = {}
        self._learner = ""
        self._refused: set[str] = set()
        self._said_at = 0.0

    def show(self, snapshot: RunSnapshot) -> None:
        for line in self.lines(snapshot):
            self.say(line)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Holds nothing."""

    def lines(self, s: RunSnapshot) -> list[str]:
        """What is new since the last snapshot."""
        stamp = f"[{clock(s.elapsed_s)}]"
        found = [f"{stamp} {line}" for line in (*self._membership(s), *self._phase(s), *self._step(s))]
        if not found and s.elapsed_s - self._said_at >= SIGN_OF_LIFE_S:
            found = [f"{stamp} {waiting(s)}"]
        if found:
            self._said_at = s.elapsed_s
        return found

    def _membership(self, s: RunSnapshot) -> list[str]:
        now = {row.name: row.state for row in s.producers}
        # Pausing is part of every step; only joining, leaving and the first weights are news.
        news = [f"{name} {state}" for name, state in now.items() if _settled(self._members.get(name)) != _settled(state)]
        news += [f"{name} left" for name in self._members if name not in now]
        self._members = now
        for name, why in s.refused.items():
            if name not in self._refused:
                self._refused.add(name)
                news.append(f"refused {name}: {'; '.join(why)}")
        return news

    def _phase(self, s: RunSnapshot) -> list[str]:
        if s.learner == self._learner:
            return []
        self._learner = s.learner
        shown = s.steps == 0 or s.stop is not None  # in between, the lines of steps say enough
        return [f"learner {s.learner}"] if shown else []

    def _step(self, s: RunSnapshot) -> list[str]:
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


def waiting(s: RunSnapshot) -> str:
    """What everybody is doing now."""
    parts = [f"learner {learner_phase(s)}"]
    parts += [f"{name} {doing}" for name, doing in not_joined(s)]
    parts += [f"{row.name} {row.state} ({row.in_hand} requests, {row.tokens_per_s:.0f} tokens/s)" for row in s.producers]
    return "; ".join(parts)
