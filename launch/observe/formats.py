"""Numbers, durations, curves and paths as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

_BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40


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


def short_path(path: Path) -> str:
    """A path as short as it can be typed from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
