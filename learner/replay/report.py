"""What a replay reports: lines for a person, and how it ended. On standard output, or as JSON lines in a file for `weir`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

EQUAL, DIFFERS, WRONG_INPUT = 0, 1, 2


class ReplayReport:
    """Rank 0 only. `file`: where the JSON lines go; None for standard output and standard error."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file.open("a", encoding="utf-8") if file is not None else None

    def line(self, text: str = "") -> None:
        if self._file is None:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        else:
            self._write({"line": text})

    def end(self, code: int, errors: Sequence[str] = ()) -> int:
        """The last entry: the exit code, which is returned, and what went wrong."""
        if self._file is None:
            sys.stderr.write("".join(f"error: {error}\n" for error in errors))
        else:
            self._write({"end": code, "errors": list(errors)})
        return code

    def _write(self, what: object) -> None:
        assert self._file is not None
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()
