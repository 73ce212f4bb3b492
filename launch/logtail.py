"""The part of a process's log that tells why it ended."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path

LINES = 12
UNMARKED_LINES = 5  # of a log that names no error: the process was killed from outside
READ_BYTES = 256 * 1024

# What torchrun adds below a worker's own error: true, long, and no cause.
_AGENT = re.compile(r"torch[./]distributed[./]elastic|failed \(exitcode: |ChildFailedError")
_ERROR = re.compile(r"\bERROR\b|\bCRITICAL\b|^[\w.]*(Error|Exception)\b|^[\w.]+(Error|Refused|Stopped|Exceeded|Dead): ")
_TRACEBACK = "Traceback (most recent call last):"


def tail(path: Path, count: int) -> list[str]:
    """Last lines of a file, without empty ones; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - READ_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return list(deque((line.rstrip() for line in text.splitlines() if line.strip()), maxlen=count))


def error_lines(path: Path, count: int = LINES) -> list[str]:
    """At most `count` lines that tell what went wrong: the last traceback, else lines marked as errors, else the end."""
    return pick_error(tail(path, 2000), count)


def pick_error(lines: Sequence[str], count: int = LINES) -> list[str]:
    own = list(lines)
    agent = next((i for i, line in enumerate(own) if _AGENT.search(line) and not line.startswith("  ")), None)
    if agent is not None and agent > 0:
        own = own[:agent]
    starts = [i for i, line in enumerate(own) if _TRACEBACK in line]
    if starts:
        return _traceback(own[starts[-1] :], count)
    marked = [line for line in own if _ERROR.search(line)]
    return marked[-count:] or own[-min(count, UNMARKED_LINES) :]


def _traceback(lines: Sequence[str], count: int) -> list[str]:
    """Up to the line that names the exception, and what follows as its message, shortened in the middle."""
    end = next((i for i, line in enumerate(lines) if i > 0 and not line.startswith((" ", "\t"))), len(lines) - 1)
    whole = list(lines[: min(len(lines), end + 1)])
    message = [line for line in lines[end + 1 : end + 6] if not re.match(r"\d\d:\d\d:\d\d", line)]
    whole += message
    if len(whole) <= count:
        return whole
    return [whole[0], "  ...", *whole[-(count - 2) :]]
