"""The process that verifies mathematics: one JSON line in (`answer`, `completion`), one out (`score`, `refused` or `error`).

It ends with its input, and with its parent where the kernel can arrange that.
"""

from __future__ import annotations

import ctypes
import json
import logging
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_MEMORY_BYTES = 8 << 30


def _limits() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the producer decides when this process ends
    if not sys.platform.startswith("linux"):
        return
    import resource

    # A completion may spell a number that fills the machine's memory; then this process fails, not its neighbours.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def verify(answer: str, completion: str) -> dict[str, Any]:
    """Whether the completion's answer equals the row's. No timeout of its own: the library's needs the main thread's signals,
    and cannot interrupt one long operation; the caller kills this process instead."""
    import math_verify

    gold_text = answer if "$" in answer or "\\boxed" in answer else f"\\boxed{{{answer}}}"
    gold = math_verify.parse(gold_text, parsing_timeout=None)
    if not gold:
        return {"refused": "not a formula or number that can be parsed"}
    found = math_verify.parse(completion, parsing_timeout=None)
    return {"score": float(bool(found) and math_verify.verify(gold, found, timeout_seconds=None))}


def main() -> None:
    _limits()
    logging.disable(logging.WARNING)  # the library warns about the timeouts that are switched off on purpose
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints must not break the protocol
    for line in sys.stdin:
        question = json.loads(line)
        if question == "ready":
            import math_verify  # noqa: F401 - the slow part, done before the clock of a question runs

            reply: dict[str, Any] = {}
        else:
            try:
                reply = verify(question["answer"], question["completion"])
            except Exception as error:  # noqa: BLE001 - the top of this process: the caller raises it
                reply = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
