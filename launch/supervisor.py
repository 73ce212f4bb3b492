"""Carries out what `launch/supervision.py` decides: starts the processes, watches them, ends them. Runs on the main thread.

Invariant: when `supervise` returns, or raises, nothing that it started is left: the guards end with everything below them, and
what a crash of a guard may have orphaned is adopted by this process and killed.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

import psutil

from launch.children import Child, ChildSpec
from launch.display import Display
from launch.guard import adopt_orphans
from launch.logtail import tail
from launch.supervision import (
    BrokerLost,
    Claimed,
    Command,
    Done,
    Event,
    Exited,
    Interrupted,
    Kill,
    Outcome,
    StopSeen,
    Supervision,
    Terminate,
    Tick,
    describe_code,
)
from launch.view import Snapshot

log = logging.getLogger(__name__)

TURN_S = 0.2
BROKER_PERIOD_S = 1.0
SWEEP_S = 10.0
LOG_PERIOD_S = 2.0
LOG_WIDTH = 80
LOG_LINES = 40
_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d+ \w+ +(producer|learner)\S*: (?P<text>.*)")
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Following(Protocol):
    """What the supervisor sees of the run's topics; `launch.watch.Watch` is the real one."""

    def snapshot(self) -> Snapshot: ...

    def process(self, name: str, doing: str) -> None: ...

    def broker(self, doing: str) -> None: ...


class Inbox:
    """Signals as events. A handler only notes the signal and wakes the loop."""

    def __init__(self) -> None:
        self._noted: deque[str] = deque()
        self._wake = threading.Event()

    @contextmanager
    def listening(self) -> Iterator[None]:
        former = {number: signal.signal(number, self._note) for number in INTERRUPTS}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def take(self) -> list[Event]:
        found: list[Event] = []
        while self._noted:
            found.append(Interrupted(self._noted.popleft()))
        return found

    def wait(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append(signal.Signals(number).name)
        self._wake.set()


class Supervisor:
    """One run's processes.

    Args:
        learner, producers: what to start, all at once.
        broker_lost: why the broker is gone, or None; asked once a second.
        cwd: working folder of the processes.
    """

    def __init__(
        self,
        learner: ChildSpec,
        producers: Sequence[ChildSpec],
        *,
        watch: Following,
        display: Display,
        broker_lost: Callable[[], str | None],
        start_timeout_s: float,
        stop_timeout_s: float,
        cwd: Path,
    ) -> None:
        self._specs = [learner, *producers]
        self._watch, self._display = watch, display
        self._broker_lost = broker_lost
        self._cwd = cwd
        self._children: dict[str, Child] = {}
        self._inbox = Inbox()
        self._core = Supervision(
            learner.name,
            [spec.name for spec in producers],
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
            now=time.monotonic(),
        )
        self._before: set[psutil.Process] = set()
        self._asked_broker = self._read_logs = 0.0
        self._claimed = False
        self._stopped = False

    def supervise(self) -> Outcome:
        """Start everything and stay until nothing is left of it."""
        adopt_orphans()
        self._before = set(psutil.Process().children(recursive=True))
        with self._inbox.listening():
            try:
                for spec in self._specs:
                    self._children[spec.name] = Child(spec, self._cwd)
                    self._watch.process(spec.name, "starting")
                return self._loop()
            finally:
                self._sweep()

    def _loop(self) -> Outcome:
        while True:
            for event in self._events():
                for command in self._core.on(event, time.monotonic()):
                    if isinstance(command, Done):
                        return command.outcome
                    self._carry_out(command)
            self._describe_starting()
            self._display.show(self._watch.snapshot())
            self._inbox.wait(TURN_S)

    def _events(self) -> Iterator[Event]:
        # Topics before processes: a stop that stands on control explains the ends that follow it.
        yield from self._from_topics()
        yield from self._inbox.take()
        for name, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[name]
                self._watch.process(name, f"ended with {describe_code(code)}" if code else "ended")
                yield Exited(name, code)
        now = time.monotonic()
        if now - self._asked_broker >= BROKER_PERIOD_S:
            self._asked_broker = now
            lost = self._broker_lost()
            if lost is not None:
                self._watch.broker("gone")
                yield BrokerLost(lost)
        yield Tick()

    def _from_topics(self) -> Iterator[Event]:
        snapshot = self._watch.snapshot()
        if not self._claimed and snapshot.learner != "starting":
            self._claimed = True
            yield Claimed()
        if not self._stopped and snapshot.stop is not None:
            self._stopped = True
            yield StopSeen(snapshot.stop.reason, snapshot.stop.finished)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Terminate(name):
                self._watch.process(name, "asked to end")
                self._children[name].terminate()
            case Kill(name):
                self._display.say(f"{name} does not end in time: killing it")
                self._watch.process(name, "killed")
                self._children[name].kill()
            case Done():
                raise AssertionError("Done is the loop's")

    def _describe_starting(self) -> None:
        """The last line of a process's log tells what it is at before it shows up on the topics."""
        now = time.monotonic()
        if now - self._read_logs < LOG_PERIOD_S or self._core.outcome is not None:
            return
        self._read_logs = now
        for name, child in self._children.items():
            told = [match["text"] for line in tail(child.log, LOG_LINES) if (match := _LOG_LINE.match(line))]
            self._watch.process(name, f"starting: {told[-1][:LOG_WIDTH]}" if told else "starting")

    def _sweep(self) -> None:
        """Nothing is left, whatever happened above. What ran before (a broker) is not ours to end."""
        for child in self._children.values():
            child.kill()
        until = time.monotonic() + SWEEP_S
        while any(child.poll() is None for child in self._children.values()):
            if time.monotonic() > until:
                log.error("processes are left after %g s: %s", SWEEP_S, ", ".join(self._children))
                break
            time.sleep(0.05)
        for process in set(psutil.Process().children(recursive=True)) - self._before:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
