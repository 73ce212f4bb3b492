"""The identity of a process, and locks between processes.

A process is identified by its id *and* its start time: an id that the system has since given to another process is never
signalled. A lock belongs to the process that holds it: the system frees it when that process dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from broker_config.deadline import Deadline


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process: its id, and when it started (boot of the machine and clock ticks since)."""

    pid: int
    started: str

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """The living process with this id, or None. A process that has ended but is not yet reaped does not count as living."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The name in parentheses may itself hold spaces and parentheses; the fields start behind the last one.
        fields = stat.rpartition(")")[2].split()
        state, start_ticks = fields[0], fields[19]
        return None if state in "ZX" else ProcessId(pid, f"{boot}/{start_ticks}")

    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def send(self, signum: signal.Signals) -> bool:
        """Send a signal to exactly this process; False if it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The handle pins the process that has the id now, so its identity cannot change after the check.
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, signum)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)


@contextmanager
def file_lock(path: Path, deadline: Deadline, what: str) -> Iterator[None]:
    """Hold `path` exclusively among all processes; its folder is created. The file itself stays, also when the lock is free.

    Raises:
        DeadlineExceeded: another process held it until the deadline; the message names `what` is being waited for.
    """
    # Keeping the file rules out two holders, one of a removed file and one of its successor. It also switches off filelock's
    # fallback for file systems without flock, where the file of a dead holder would stay locked.
    lock = FileLock(path, preserve_lock_file=True)
    try:
        held = lock.acquire(timeout=deadline.remaining())
    except Timeout:
        raise deadline.exceeded(f"{what} (another process holds {path})") from None
    with held:
        yield
