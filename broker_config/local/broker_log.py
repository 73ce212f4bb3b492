"""Why a broker ended, according to its log. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

# `[date] ERROR Error while appending records to run.control-0 in dir /data (the.logger)`, and in the next line the exception.
_FAILED = re.compile(r"(?:ERROR|FATAL) (?:Error while |Encountered [a-z ]*fault: )(?P<doing>.+?)(?: \([\w.$]+\))?$")
_CAUSE = re.compile(r"(?:Caused by: )?[\w.$]+(?:Exception|Error): (?P<why>.+)$")


def fault(lines: Iterable[str]) -> str | None:
    """What the broker was doing when it first failed, with the partition and the folder, and the innermost cause.

    None if the log shows no failure.
    """
    doing: str | None = None
    why: str | None = None
    for line in lines:
        if doing is None:
            failed = _FAILED.search(line)
            doing = failed["doing"] if failed is not None else None
        elif (cause := _CAUSE.match(line)) is not None:
            why = cause["why"]
        elif line.startswith("["):
            break
    return doing if why is None else f"{doing}: {why}"
