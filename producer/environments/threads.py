"""Running a blocking call off the event loop, without letting a call that never returns hold the process at its exit.

`asyncio.to_thread` uses a pool whose threads the interpreter joins when it exits; a scoring function that hangs would then keep
the producer alive for ever. These threads are daemons, and a hung one only uses up its place.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most `limit` calls at a time. A cancelled call gives its place back only when its thread ends."""

    def __init__(self, limit: int = 16) -> None:
        self._limit = limit
        self._running = 0
        self._waiters: list[asyncio.Future[None]] = []

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)` in a thread; returns its result or raises what it raised."""
        loop = asyncio.get_running_loop()
        while self._running >= self._limit:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        self._running += 1
        result: asyncio.Future[T] = loop.create_future()

        def done(value: Any, error: BaseException | None) -> None:
            self._running -= 1
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
                    break
            if result.done():
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        def run() -> None:
            value: Any = None
            error: BaseException | None = None
            try:
                value = function(*args)
            except StopIteration as stop:
                error = RuntimeError(f"StopIteration from {function!r}")  # a future refuses StopIteration itself
                error.__cause__ = stop
            except BaseException as raised:  # noqa: BLE001 - the top of a thread: handed whole to who awaits the result
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, value, error)

        threading.Thread(target=run, name="score", daemon=True).start()
        return await result
