from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker_config.deadline import Deadline
from broker_config.processes import ProcessId, file_lock
from schemas.errors import DeadlineExceeded


def test_a_process_is_known_by_its_start_time_too() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None and me.alive()
    assert not ProcessId(me.pid, "another boot/123").alive()
    assert not ProcessId(me.pid, "another boot/123").send(signal.SIGKILL)


def test_an_ended_process_that_is_not_reaped_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    identity = ProcessId.of(child.pid)
    assert identity is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, still a zombie
    assert not identity.alive()
    child.wait()


def test_a_lock_is_held_by_one_and_freed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with (
        file_lock(path, Deadline(1), "a"),
        pytest.raises(DeadlineExceeded, match="for the other one"),
        file_lock(path, Deadline(0), "the other one"),
    ):
        pass
    with file_lock(path, Deadline(0), "again"):
        pass


HOLDER = """
import subprocess, sys
from pathlib import Path
from broker_config.deadline import Deadline
from broker_config.processes import file_lock
with file_lock(Path(sys.argv[1]), Deadline(10), "nobody"):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    child.wait()
"""


def test_a_lock_that_another_process_holds_is_waited_for_and_free_when_the_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        child = ProcessId.of(int(holder.stdout.readline()))
        with (
            pytest.raises(DeadlineExceeded) as caught,
            file_lock(path, Deadline(0.1), "the start of another one"),
        ):
            pass
        assert str(caught.value) == f"waited 0.1 s for the start of another one (another process holds {path})"
        holder.kill()
        holder.wait(20)
        with file_lock(path, Deadline(0), "the holder's child, which does not inherit the lock"):
            assert child is not None and child.alive()


def test_the_file_of_a_lock_stays_the_same_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    inodes: set[int] = set()
    for _ in range(2):
        with file_lock(path, Deadline(0), "nobody"):
            inodes.add(path.stat().st_ino)
    assert inodes == {path.stat().st_ino}
