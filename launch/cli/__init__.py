"""The `weir` command: a thin door to the packages.

Importing them takes a second. A Ctrl-C in it finds nothing started: the process is gone at once, and quietly.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def _leave(number: int, frame: FrameType | None) -> None:
    # Not by an exception: half-imported modules would turn it into others, or print it.
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
