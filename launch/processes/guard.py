"""Stands above one process of a run, so that nothing of it outlives the run, whoever is killed.

    python -m launch.processes.guard --parent PID --grace SECONDS -- COMMAND...

Starts COMMAND in its own session and becomes the parent of everything that it leaves behind (a "subreaper": torchrun's
workers and vLLM's engine have their own sessions, so that no process group holds them all). Invariant: this process ends
only when no descendant is left, with COMMAND's exit code (128 + signal when it was killed by one). There is one for each process
of a run, so it imports neither pydantic nor confluent_kafka.

    SIGTERM, SIGINT, or the end of PID    COMMAND gets SIGTERM, and after `--grace` seconds all descendants get SIGKILL
    SIGQUIT                               all descendants get SIGKILL at once
    the end of COMMAND                    descendants have `LINGER_S` seconds to end by themselves, then they get SIGKILL
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time

import psutil

from broker_config.lifeline import die_with_parent

LINGER_S = 5.0
POLL_S = 0.2  # an orphan of a foreign child may end without a signal to this process
_PR_SET_CHILD_SUBREAPER = 36
_WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD}


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux).

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def kill_descendants() -> None:
    """SIGKILL everything below this process."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


class Guard:
    """The loop around one command. Signals are blocked and taken one at a time, so nothing here is interrupted."""

    def __init__(self, command: list[str], parent: int, grace_s: float) -> None:
        self._grace_s = grace_s
        self._deadline: float | None = None
        self._code: int | None = None
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        adopt_orphans()
        die_with_parent(signal.SIGTERM)
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_in_child)
        if os.getppid() != parent:
            self._ask_to_end()  # it ended before the request above was in place

    def run(self) -> int:
        while True:
            self._reap()
            if self._code is not None and not psutil.Process().children():
                return self._code
            if self._deadline is not None and time.monotonic() >= self._deadline:
                kill_descendants()
            received = signal.sigtimedwait(_WATCHED, POLL_S)
            if received is None or received.si_signo == signal.SIGCHLD:
                continue
            if received.si_signo == signal.SIGQUIT:
                self._deadline = time.monotonic()
            else:
                self._ask_to_end()

    def _ask_to_end(self) -> None:
        if self._code is None:
            os.kill(self._child.pid, signal.SIGTERM)
            self._end_by(self._grace_s)

    def _end_by(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._deadline = until if self._deadline is None else min(self._deadline, until)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child.pid:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code
                self._child.returncode = self._code
                self._end_by(LINGER_S)


def _in_child() -> None:
    die_with_parent(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m launch.processes.guard", description="Run a command, and leave nothing of it behind."
    )
    parser.add_argument("--parent", type=int, required=True, help="the process whose end ends the command")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command with its arguments")
    given = parser.parse_args()
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    return Guard(command, given.parent, given.grace).run()


if __name__ == "__main__":
    sys.exit(main())
