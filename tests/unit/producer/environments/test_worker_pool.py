"""The pool of killable workers. Most tests share one pool with one worker, since to start one takes a while."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from producer.environments.worker_pool import MEMORY_BYTES, CallFailed, CallTimeout, WorkerPool
from tests.fakes.producer import worker_calls as calls
from tests.support import eventually

LONG_S = 60.0
SHORT_S = 0.2
TWO_STARTS_S = 120.0
"""An interpreter that imports the pool, and then a worker: seconds, but a minute each on a machine with other work."""

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def pool(runner: asyncio.Runner) -> Iterator[WorkerPool]:
    pool = WorkerPool(1)
    yield pool
    runner.run(pool.close())


@pytest.fixture(scope="module")
def call(runner: asyncio.Runner, pool: WorkerPool) -> Call:
    """`call(function, *args)` in the shared pool."""

    def call(function: Callable[..., Any], *args: Any, timeout_s: float = LONG_S) -> Any:
        return runner.run(pool.call(function, *args, timeout_s=timeout_s))

    return call


def pid_in(begun: Path) -> int:
    """The worker that has begun `hold_the_lock`."""
    return int(eventually(lambda: begun.read_text() if begun.exists() else "", LONG_S, "the call to begin"))


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_start_of_a_worker_does_not_count_as_time_of_the_call(runner: asyncio.Runner) -> None:
    async def run() -> dict[str, Any]:
        pool = WorkerPool(1, calls.prepare)
        try:
            return await pool.call(calls.state, timeout_s=SHORT_S)
        finally:
            await pool.close()

    assert runner.run(run())["prepared"]


def test_a_worker_is_a_child_with_limits_that_ignores_interrupts(call: Call) -> None:
    state = call(calls.state)
    assert state["parent"] == os.getpid()
    assert state["memory"] == MEMORY_BYTES
    assert state["ignores_interrupts"]
    assert call(calls.state)["pid"] == state["pid"]


def test_calls_return_in_any_number(runner: asyncio.Runner, pool: WorkerPool) -> None:
    async def run() -> list[int]:
        return await asyncio.gather(*(pool.call(calls.double, n, timeout_s=LONG_S) for n in range(50)))

    assert runner.run(run()) == [2 * n for n in range(50)]


def test_what_a_function_raises_is_raised_with_its_traceback_in_the_worker(call: Call) -> None:
    with pytest.raises(KeyError, match="level") as caught:
        call(calls.fail, "plain")
    assert 'raise KeyError("level")' in caught.value.__notes__[0]
    with pytest.raises(TimeoutError, match="a service did not answer"):
        call(calls.fail, "timeout")
    with pytest.raises(MemoryError):
        call(calls.fill_memory)


@pytest.mark.parametrize(
    ("function", "args", "why"),
    [
        (calls.fail, ("unpicklable",), "Unpicklable: this and that"),
        (calls.fail, ("local",), "Local: of a function"),
        (calls.leave, (), "SystemExit: 3"),
    ],
)
def test_an_exception_that_cannot_travel_fails_its_own_call_only(call: Call, function: Any, args: Any, why: str) -> None:
    before = call(calls.state)["pid"]
    with pytest.raises(CallFailed, match=why):
        call(function, *args)
    assert call(calls.state)["pid"] == before


def test_a_result_that_cannot_travel_is_an_error(call: Call) -> None:
    with pytest.raises(AttributeError, match="pickle"):
        call(calls.give_back_a_function)


def test_a_call_that_holds_the_interpreters_lock_is_killed_at_its_timeout_and_the_next_one_answered(call: Call) -> None:
    before = call(calls.state)["pid"]
    with pytest.raises(CallTimeout, match=r"no result within 0\.2 s"):
        call(calls.hold_the_lock, timeout_s=SHORT_S)
    assert call(calls.state)["pid"] != before
    assert gone(before)


def test_cancelling_a_call_kills_its_worker(runner: asyncio.Runner, pool: WorkerPool, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def run() -> int:
        task = asyncio.create_task(pool.call(calls.hold_the_lock, begun, timeout_s=LONG_S))
        pid = await asyncio.to_thread(pid_in, begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pid

    pid = runner.run(run())
    eventually(lambda: gone(pid), LONG_S, "the end of the worker")


def test_cancelling_a_call_that_waits_for_a_worker_harms_nobody(runner: asyncio.Runner, pool: WorkerPool, call: Call) -> None:
    before = call(calls.state)["pid"]

    async def run() -> list[Any]:
        tasks = [asyncio.create_task(pool.call(calls.double, n, timeout_s=LONG_S)) for n in range(4)]
        await asyncio.sleep(0)
        for task in tasks[1:]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = runner.run(run())
    assert first == 0
    assert all(isinstance(other, asyncio.CancelledError) for other in others)
    assert call(calls.state)["pid"] == before


def test_a_worker_that_dies_fails_its_call_and_is_replaced(call: Call) -> None:
    with pytest.raises(CallFailed, match="exit code 7"):
        call(calls.die, 7)
    assert call(calls.double, 4) == 8


def test_a_worker_that_dies_idle_is_replaced(call: Call) -> None:
    pid = call(calls.state)["pid"]
    os.kill(pid, signal.SIGKILL)

    def answered() -> bool:
        try:
            return bool(call(calls.double, 4) == 8)
        except CallFailed:  # asked before the death was noticed
            return False

    eventually(answered, LONG_S, "another worker")


def test_a_worker_that_cannot_start_fails_the_call(runner: asyncio.Runner) -> None:
    async def run() -> None:
        pool = WorkerPool(1, calls.prepare_badly)
        with pytest.raises(CallFailed, match="the workers are gone"):
            await pool.call(calls.double, 4, timeout_s=LONG_S)
        await pool.close()

    runner.run(run())


def test_closing_ends_calls_and_workers(runner: asyncio.Runner, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def run() -> int:
        pool = WorkerPool(1)
        task = asyncio.create_task(pool.call(calls.hold_the_lock, begun, timeout_s=LONG_S))
        pid = await asyncio.to_thread(pid_in, begun)
        await pool.close()
        with pytest.raises(CallFailed, match="the workers are gone"):
            await task
        return pid

    assert gone(runner.run(run()))


@pytest.mark.timeout(240)
def test_nothing_is_left_of_a_producer_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from producer.environments.worker_pool import WorkerPool;"
        "from tests.fakes.producer import worker_calls as calls;"
        "asyncio.run(WorkerPool(2).call(calls.hold_the_lock, Path(sys.argv[1]), timeout_s=600))"
    )
    begun, errors = tmp_path / "begun", tmp_path / "errors"
    with errors.open("wb") as log, subprocess.Popen([sys.executable, "-c", code, str(begun)], stderr=log) as killed:

        def worker_or_end() -> int | None:
            if killed.poll() is not None:
                pytest.fail(f"the producer ended (code {killed.returncode}):\n{errors.read_text()}")
            return int(begun.read_text() or 0) if begun.exists() else None

        worker = eventually(worker_or_end, TWO_STARTS_S, "the call to begin")
        children = psutil.Process(killed.pid).children(recursive=True)
        assert worker in {child.pid for child in children}
        killed.kill()
    _, left = psutil.wait_procs(children, timeout=LONG_S)
    assert left == []
