"""Calls that may never return, made in processes that can be killed.

Scoring what a policy writes may take for ever: `9**9**9` holds the interpreter's lock while sympy evaluates it. A thread cannot
be stopped from outside; a process can. When a call takes too long or its caller is cancelled, its worker is killed and replaced.
No worker outlives the producer, however the producer ends.

| waits for | unblocked by | deadline |
|---|---|---|
| a free worker | the end of another call | the caller's: a rollout without progress is cancelled |
| a worker that starts | its preparation | `START_S` |
| the result | the function's return | the call's `timeout_s`, counted from the moment a prepared worker takes it |

What travels is pickled at the two ends, not by the library's own threads: a result or an exception that does not survive it
fails its own call and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import resource
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar, cast

from pebble import ProcessExpired, ProcessPool

from broker_config.lifeline import die_with_parent

T = TypeVar("T")

START_S = 60.0
"""A worker starts an interpreter and imports a library or two; on a busy machine that takes many seconds."""
MEMORY_BYTES = 8 << 30
"""Address space of a worker. A completion may spell a number that fills the machine's memory."""


class CallTimeout(Exception):
    """The call took longer than it may; its worker was killed."""


class CallFailed(Exception):
    """The call has no result: its worker died, or what it returned or raised cannot be pickled."""


class WorkerPool:
    """Workers start with the first call. Use a pool from one event loop, on a thread that lives as long as the pool: the kernel
    ends workers together with the thread that started them."""

    def __init__(self, workers: int, prepare: Callable[[], None] | None = None) -> None:
        """prepare: a function of some module; runs in every worker before its first call. The place for slow imports."""
        self._workers = workers
        self._prepare = prepare
        # The library would queue calls too, but kill a worker for each queued one that was cancelled.
        self._free = asyncio.Semaphore(workers)
        self._pool: ProcessPool | None = None
        self._calls: set[Future[bytes]] = set()

    async def call(self, function: Callable[..., T], *args: Any, timeout_s: float) -> T:
        """`function(*args)` in a worker. Cancelling the call kills the worker that it runs in.

        Raises:
            CallTimeout: no result within `timeout_s`; CallFailed: see there; else what the function raised.
        """
        question = pickle.dumps((function, args))
        async with self._free:
            answer = await self._exchange(question, timeout_s)
        value, error = pickle.loads(answer)
        if error is not None:
            raise error
        return cast(T, value)

    async def _exchange(self, question: bytes, timeout_s: float) -> bytes:
        pool = await self._running()
        limit = asyncio.timeout(START_S + timeout_s)
        try:
            future: Future[bytes] = pool.schedule(_answer, args=(question,), timeout=timeout_s)
            self._calls.add(future)
            future.add_done_callback(self._calls.discard)
            async with limit:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not limit.expired():
                raise CallTimeout(f"no result within {timeout_s:g} s") from None
            if pool is self._pool:
                await self.close()
            raise CallFailed(f"no worker took the call within {START_S:g} s") from None
        except ProcessExpired as error:
            raise CallFailed(f"the worker died with exit code {error.exitcode}") from error
        except BrokenProcessPool as error:
            raise CallFailed("the workers are gone; what they reported is on standard error") from error

    async def _running(self) -> ProcessPool:
        """The pool; a new one if the last one gave up because a worker died while it was idle, or could not start."""
        if self._pool is not None and not self._pool.active:
            await self.close()
        if self._pool is None:
            # Not forked: the producer has threads, CUDA and Kafka clients.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPool(self._workers, initializer=_set_up, initargs=(self._prepare,), context=context)
        return self._pool

    async def close(self) -> None:
        """Kill all workers; calls under way fail. A later call starts others."""
        pool, self._pool = self._pool, None
        calls = list(self._calls)
        if pool is not None:
            pool.stop()
            await asyncio.to_thread(pool.join)
        for future in calls:
            if not future.done():  # nobody else will end it now
                future.set_exception(BrokenProcessPool("the pool was closed"))


def _set_up(prepare: Callable[[], None] | None) -> None:
    """Runs first in every worker. The library has it ignore SIGINT already: Ctrl-C reaches the whole process group, and the
    producer decides when its workers end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler in Python would not run while one operation holds the lock
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if prepare is not None:
        prepare()


def _answer(question: bytes) -> bytes:
    """In the worker: the pickled (value, None) or (None, exception) of a pickled (function, args)."""
    try:
        function, args = pickle.loads(question)
        return pickle.dumps((function(*args), None))
    except BaseException as error:  # noqa: BLE001 (the top of the call: the caller raises it)
        return _packed(error)


def _packed(error: BaseException) -> bytes:
    error.add_note(f"In the worker: {traceback.format_exc()}")
    # Any library's exception, so how it fails to be pickled is anybody's guess. SystemExit would end the producer.
    with contextlib.suppress(Exception):
        packed = pickle.dumps((None, error))
        if isinstance(pickle.loads(packed)[1], Exception):
            return packed
    return pickle.dumps((None, CallFailed(f"{type(error).__name__}: {error}")))
