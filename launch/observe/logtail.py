"""The part of a process's log that shows why it ended."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path

LINES = 12
UNMARKED_LINES = 5  # of a log that names no error: the process was killed from outside
READ_BYTES = 256 * 1024

# What torchrun adds below a worker's own error: correct, long, and not the cause.
_AGENT = re.compile(r"torch[./]distributed[./]elastic|failed \(exitcode: |ChildFailedError")
_ERROR = re.compile(r"\bERROR\b|\bCRITICAL\b|^[\w.]*(Error|Exception)\b|^[\w.]+(Error|Refused|Stopped|Exceeded|Dead): ")
_LOGGED = re.compile(r"\d\d:\d\d|--- ")
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
    """At most `count` lines that show what went wrong: the last traceback, else lines marked as errors, else the end."""
    return pick_error(tail(path, 2000), count)


def pick_error(lines: Sequence[str], count: int = LINES) -> list[str]:
    own = list(lines)
    agent = next((i for i, line in enumerate(own) if _AGENT.search(line) and not line.startswith("  ")), None)
    if agent is not None and agent > 0:
        own = own[:agent]
    starts = [i for i, line in enumerate(own) if _TRACEBACK in line]
    if starts:
        return _traceback(own[starts[-1] :], count)
    errors = _errors(own)
    shown: list[str] = []
    for error in reversed(errors):
        if shown and len(shown) + len(error) > count:
            break
        shown = error + shown
    return _shortened(shown, count) if shown else own[-min(count, UNMARKED_LINES) :]


def _errors(lines: Sequence[str]) -> list[list[str]]:
    """Lines marked as errors, each with those of its message that follow."""
    errors: list[list[str]] = []
    inside = False
    for line in lines:
        if _ERROR.search(line):
            errors.append([line])
            inside = True
        elif inside and not _LOGGED.match(line):
            errors[-1].append(line)
        else:
            inside = False
    return errors


def _traceback(lines: Sequence[str], count: int) -> list[str]:
    """Everything up to the line that names the exception, with the rest of its message; shortened in the middle."""
    end = next((i for i, line in enumerate(lines) if i > 0 and not line.startswith((" ", "\t"))), len(lines) - 1)
    whole = list(lines[: min(len(lines), end + 1)])
    message = [line for line in lines[end + 1 : end + 6] if not _LOGGED.match(line)]
    return _shortened([*whole, *message], count)


def _shortened(lines: list[str], count: int) -> list[str]:
    return lines if len(lines) <= count else [lines[0], "  ...", *lines[-(count - 2) :]]
