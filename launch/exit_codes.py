"""Exit codes of `launch/run_cluster.sh` and of `weir`, and the exit code of any process in words."""

from __future__ import annotations

import signal

FINISHED, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def describe_code(code: int) -> str:
    """128 + n is the end by signal n."""
    if code > 128:
        try:
            return f"signal {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exit code {code}"
