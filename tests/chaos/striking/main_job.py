"""Processes of the main job, found by their command lines and killed."""

from __future__ import annotations

import signal

import psutil

from tests.pipeline import Job


def processes(job: Job, words: str) -> list[psutil.Process]:
    """Those under the supervisor whose command line holds `words`, but for guards, which repeat it; the innermost is the last."""
    found = [p for p in psutil.Process(job.process.pid).children(recursive=True) if words in " ".join(p.cmdline())]
    return [p for p in found if "launch.processes.guard" not in p.cmdline()]


def kill(job: Job, words: str) -> None:
    processes(job, words)[-1].send_signal(signal.SIGKILL)
