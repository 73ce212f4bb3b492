"""Logging of a process, configured in one place: one line per message, to standard error or a file."""

from __future__ import annotations

import logging
import sys
import time

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"


def configure(level: str = "INFO", file: str | None = None) -> None:
    """Write this process's log to standard error, or append it to `file`. Times are UTC."""
    handler: logging.Handler = logging.FileHandler(file) if file else logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(FORMAT, datefmt="%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
