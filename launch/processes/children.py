"""The processes of a run as the supervisor holds them: started under a guard, writing to a log file, ended as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.processes.specs import ProcessSpec

GUARD_EXTRA_S = 5.0  # the guard's own patience is longer than the supervisor's, which acts first while it lives


class Child:
    """One running process with everything below it.

    Must be made by the main thread: the system ties a child's life to the thread that started it.

    Args:
        cwd: its working folder.
        keep_open: file descriptors that stay open while anything of it lives.
    """

    def __init__(self, spec: ProcessSpec, cwd: Path, keep_open: Sequence[int] = ()) -> None:
        self.name = spec.name
        self.log = spec.log
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        guard = [sys.executable, "-m", "launch.processes.guard", "--parent", str(os.getpid())]
        guard += ["--grace", str(spec.grace_s + GUARD_EXTRA_S), "--"]
        with spec.log.open("ab") as output:
            self._guard = subprocess.Popen(
                [*guard, *spec.command],
                cwd=cwd,
                env=dict(spec.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=keep_open,
            )

    @property
    def pid(self) -> int:
        """Of the guard: when the guard has ended, nothing of the child is left."""
        return self._guard.pid

    def poll(self) -> int | None:
        """The command's exit code (128 + signal when killed), or None while anything of the child lives."""
        code = self._guard.poll()
        return 128 - code if code is not None and code < 0 else code

    def terminate(self) -> None:
        """Ask it to end in order."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it and everything below it now."""
        self._send(signal.SIGQUIT)

    def _send(self, signum: signal.Signals) -> None:
        if self._guard.poll() is None:
            self._guard.send_signal(signum)
