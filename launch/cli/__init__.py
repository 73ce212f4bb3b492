"""The `weir` command: a thin layer over the packages.

    app.py                 the command itself: its subcommands, exit codes and errors
    broker_commands.py     `weir broker`
    operator_commands.py   `weir stop`, `weir drain`
    operator_requests.py   when to write what an operator asks for, and when it has been carried out
    replay_commands.py     `weir replay`, `weir dump`, `weir load`
    run_status.py          `weir status`
    show.py, describe.py   `weir show`: reading records, and a record in words
    topic_names.py         which topics a command line means
    export.py              `weir export`
    session.py             which run, its config, its broker

Importing them takes a second. A Ctrl-C during the imports finds nothing started: the process ends at once, and quietly.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from launch.exit_codes import INTERRUPTED


def _leave(number: int, frame: FrameType | None) -> None:
    # Not by an exception: half-imported modules would turn it into another one, or print it.
    os._exit(INTERRUPTED)


def main() -> int:
    """Exit code 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        from launch.cli.app import main as carry_out

        signal.signal(signal.SIGINT, before)
        return carry_out()
    except KeyboardInterrupt:
        return INTERRUPTED


__all__ = ["main"]
