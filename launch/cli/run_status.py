"""Printing what a run is doing: tables for a person, JSON for a program. Once, or until Ctrl-C."""

from __future__ import annotations

import sys
import time

import typer
from pydantic import TypeAdapter
from rich.console import Console

from launch.observe.details import render_details
from launch.observe.display import make_display
from launch.observe.run_view import RunSnapshot
from launch.observe.watch import RunWatch

WIDTH = 160  # of tables that are not on a terminal
TURN_S = 0.5
JSON_TURN_S = 1.0

_JSON: TypeAdapter[RunSnapshot] = TypeAdapter(RunSnapshot)


def snapshot_json(snapshot: RunSnapshot) -> str:
    """One line; a number that is not finite is null."""
    return _JSON.dump_json(snapshot, by_alias=True).decode()


def print_json(watch: RunWatch, *, follow: bool) -> None:
    typer.echo(snapshot_json(watch.snapshot()))
    while follow:
        time.sleep(JSON_TURN_S)
        typer.echo(snapshot_json(watch.snapshot()))


def print_tables(watch: RunWatch, *, follow: bool) -> None:
    """Tables, which are redrawn in place when following on a terminal; when following elsewhere, a line for each change."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if not follow:
        console.print(render_details(watch.snapshot()))
        return
    display = make_display(console, render_details)
    try:
        while True:
            display.show(watch.snapshot())
            time.sleep(TURN_S)
    finally:
        display.close()
