"""The one thread that may touch an engine.

Work arrives as callables in a queue and is answered through futures; in between, the thread steps the engine while there is
something to step. Idle, it waits on the queue without a deadline: `stop` and any work end that wait. A failure of the engine ends
the thread and fails every future, present and to come, with `EngineDead` and the cause.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from producer.engine.protocol import EngineDead
from schemas.errors import TransferError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_SURVIVED = (ValueError, TransferError)
"""Errors of a call that leave the engine as it was."""


class Stepper(Protocol):
    """What the thread drives. All methods are called in the thread."""

    def open(self) -> None: ...

    def has_steps(self) -> bool:
        """Whether `step` has something to do now."""
        ...

    def step(self) -> None: ...

    def dead(self, error: EngineDead) -> None:
        """Fail whatever is still awaited. Called once; only `close` follows."""
        ...

    def close(self) -> None: ...


class EngineThread:
    """Start it, `call` into it from any thread, `stop` it."""

    def __init__(self, stepper: Stepper, name: str = "engine") -> None:
        self._stepper = stepper
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._dead: EngineDead | None = None
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, timeout_s: float) -> None:
        """Start and wait until the engine is open. Raises: what `open` raised, or TimeoutError."""
        self._thread.start()
        self._started.result(timeout_s)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` in the thread, between two steps. The future raises EngineDead if that is no longer possible."""
        future: Future[T] = Future()
        with self._lock:
            if self._dead is None:
                self._queue.put((function, future))
                return future
        future.set_exception(EngineDead(str(self._dead)))
        return future

    def stop(self, timeout_s: float) -> bool:
        """End the thread. False: it is still busy after `timeout_s` (a daemon: it does not keep the process alive)."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error = EngineDead("the engine was closed")
        try:
            self._stepper.open()
            self._started.set_result(None)
            self._loop()
        except EngineDead as cause:
            error = cause
        except BaseException as cause:  # noqa: BLE001 (the top of the thread: whatever ended it must reach every caller)
            error = EngineDead(f"{type(cause).__name__}: {cause}")
            error.__cause__ = cause
        self._die(error)

    def _loop(self) -> None:
        while True:
            stepping = self._stepper.has_steps()
            while not stepping or not self._queue.empty():
                work = self._queue.get()
                if work is None:
                    return
                self._execute(*work)
                stepping = self._stepper.has_steps()
            self._stepper.step()

    def _execute(self, function: Callable[[], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except _SURVIVED as error:
            future.set_exception(error)
        except BaseException as error:
            future.set_exception(error if isinstance(error, EngineDead) else EngineDead(f"{type(error).__name__}: {error}"))
            raise

    def _die(self, error: EngineDead) -> None:
        with self._lock:
            self._dead = error
        if not self._started.done():
            self._started.set_exception(error.__cause__ or error)
        elif error.__cause__ is not None:
            logger.error("the engine died", exc_info=error)
        self._stepper.dead(error)
        while not self._queue.empty():
            work = self._queue.get()
            if work is not None and work[1].set_running_or_notify_cancel():
                work[1].set_exception(EngineDead(str(error)))
        try:
            self._stepper.close()
        except Exception:
            logger.exception("closing the engine failed")
