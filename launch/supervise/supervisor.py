"""Carries out what `supervision.py` decides: starts the processes, watches them, starts them again, ends them. Runs on
the main thread.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Protocol, assert_never

import psutil

from launch.observe.display import Display
from launch.observe.logtail import tail
from launch.observe.view import Snapshot
from launch.processes.children import Child, ChildSpec
from launch.processes.guard import adopt_orphans
from launch.supervise.events import (
    BrokerBack,
    BrokerLost,
    Claimed,
    Command,
    Done,
    Event,
    Exited,
    Interrupted,
    Joined,
    Kill,
    Progress,
    Start,
    StartBroker,
    StopSeen,
    Tell,
    Terminate,
    Tick,
)
from launch.supervise.outcome import Outcome, describe_code
from launch.supervise.supervision import Supervision
from schemas.config.launch import RestartConfig

log = logging.getLogger(__name__)

TURN_S = 0.2
SAVED_PERIOD_S = 1.0
SWEEP_S = 10.0
LOG_PERIOD_S = 2.0
LOG_WIDTH = 80
LOG_LINES = 40
STARTED_AGAIN = "--- started again"
_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d+ \w+ +(producer|learner)\S*: (?P<text>.*)")
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Following(Protocol):
    """What the supervisor sees of the run's topics; `launch.observe.watch.Watch` is the real one."""

    def snapshot(self) -> Snapshot: ...

    def process(self, name: str, doing: str) -> None: ...

    def broker(self, doing: str) -> None: ...


class Caring(Protocol):
    """What the supervisor sees of the broker; `launch.supervise.broker_care.BrokerCare` is the real one."""

    def begin(self) -> None: ...

    def news(self) -> Sequence[BrokerLost | BrokerBack]: ...

    def start_again(self) -> None: ...

    def pids(self) -> set[int]: ...

    def close(self) -> None: ...


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
        learner_again: the learner as it is started after it died.
        saved: whether the learner has a checkpoint to go on from.
        cwd: working folder of the processes.
    """

    def __init__(
        self,
        learner: ChildSpec,
        producers: Sequence[ChildSpec],
        *,
        learner_again: ChildSpec,
        watch: Following,
        display: Display,
        broker: Caring,
        saved: Callable[[], bool],
        restart: RestartConfig,
        start_timeout_s: float,
        stop_timeout_s: float,
        outage_timeout_s: float,
        cwd: Path,
    ) -> None:
        self._specs = [learner, *producers]
        self._again = {spec.name: spec for spec in (learner_again, *producers)}
        self._learner = learner.name
        self._watch, self._display, self._broker = watch, display, broker
        self._saved = saved
        self._cwd = cwd
        self._children: dict[str, Child] = {}
        self._inbox = Inbox()
        self._core = Supervision(
            learner.name,
            [spec.name for spec in producers],
            restart=restart,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
            outage_timeout_s=outage_timeout_s,
            now=time.monotonic(),
        )
        self._before: set[psutil.Process] = set()
        self._asked_saved = self._read_logs = 0.0
        self._claims = 0
        self._steps = 0
        self._stop: tuple[int | None, object] | None = None
        self._joined: set[str] = set()
        self._dead: set[str] = set()  # identities of producers that this supervisor saw die

    @property
    def restarts(self) -> Mapping[str, int]:
        """How often each process was started again."""
        return self._core.restarts

    def supervise(self) -> Outcome:
        """Start everything and stay until nothing is left of it."""
        adopt_orphans()
        self._before = set(psutil.Process().children(recursive=True))
        with self._inbox.listening():
            try:
                self._broker.begin()
                for spec in self._specs:
                    self._children[spec.name] = Child(spec, self._cwd)
                    self._watch.process(spec.name, "starting")
                return self._loop()
            finally:
                self._broker.close()
                self._sweep()

    def snapshot(self) -> Snapshot:
        """What the topics tell, without what this supervisor knows to be over."""
        seen = self._watch.snapshot()
        producers = [row for row in seen.producers if row.name not in self._dead]
        learner = "starting" if self._core.learner_away and seen.stop is None else seen.learner
        return replace(seen, producers=producers, learner=learner)

    def _loop(self) -> Outcome:
        while True:
            for event in self._events():
                for command in self._core.on(event, time.monotonic()):
                    if isinstance(command, Done):
                        return command.outcome
                    self._carry_out(command)
            self._describe_starting()
            self._display.show(self.snapshot())
            self._inbox.wait(TURN_S)

    def _events(self) -> Iterator[Event]:
        # Topics before processes: a stop that stands on control explains the ends that follow it. So does a broker that is away.
        seen = self._watch.snapshot()
        yield from self._from_topics(seen)
        yield from self._inbox.take()
        for news in self._broker.news():
            self._watch.broker("running again" if isinstance(news, BrokerBack) else news.detail)
            yield news
        for name, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                yield from self._from_files(at_once=name == self._learner)
                del self._children[name]
                self._dead |= {row.name for row in seen.producers if row.name.startswith(f"{name}-")}
                self._watch.process(name, f"ended with {describe_code(code)}" if code else "ended")
                yield Exited(name, code)
        yield from self._from_files(at_once=False)
        yield Tick()

    def _from_topics(self, seen: Snapshot) -> Iterator[Event]:
        for _ in range(self._claims, seen.claims):
            yield Claimed()
        self._claims = seen.claims
        if seen.steps > self._steps:
            self._steps = seen.steps
            yield Progress(seen.steps)
        members = [row.name for row in seen.producers if row.member and row.state != "silent" and row.name not in self._dead]
        for name in self._again:
            if name not in self._joined and any(member.startswith(f"{name}-") for member in members):
                self._joined.add(name)
                yield Joined(name)
        stop = (seen.incarnation, seen.stop)
        if seen.stop is not None and stop != self._stop:
            self._stop = stop
            yield StopSeen(seen.stop.reason, seen.stop.finished, seen.stop.ordered)

    def _from_files(self, *, at_once: bool) -> Iterator[Event]:
        now = time.monotonic()
        if self._learner in self._joined or not self._claims:
            return
        if at_once or now - self._asked_saved >= SAVED_PERIOD_S:
            self._asked_saved = now
            if self._saved():
                self._joined.add(self._learner)
                yield Joined(self._learner)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Start(name):
                self._start_again(name)
            case StartBroker():
                self._watch.broker("starting")
                self._broker.start_again()
            case Terminate(name):
                self._watch.process(name, "asked to end")
                self._children[name].terminate()
            case Kill(name):
                self._display.say(f"{name} does not end in time: killing it")
                self._watch.process(name, "killed")
                self._children[name].kill()
            case Tell(line, waits):
                if waits is not None:
                    self._watch.process(waits, "waits to be started again")
                log.warning("%s", line)
                self._display.say(line)
            case Done():
                raise AssertionError("Done is the loop's")
            case _:
                assert_never(command)

    def _start_again(self, name: str) -> None:
        spec = self._again[name]
        with spec.log.open("ab") as before:
            before.write(f"\n{STARTED_AGAIN} (restart {self._core.restarts[name]})\n".encode())
        self._children[name] = Child(spec, self._cwd)
        self._watch.process(name, "starting")

    def _describe_starting(self) -> None:
        """The last line of a process's log tells what it is at before it shows up on the topics."""
        now = time.monotonic()
        if now - self._read_logs < LOG_PERIOD_S or self._core.outcome is not None:
            return
        self._read_logs = now
        for name, child in self._children.items():
            lines = tail(child.log, LOG_LINES)
            first = max((i for i, line in enumerate(lines) if line.startswith(STARTED_AGAIN)), default=0)
            told = [match["text"] for line in lines[first:] if (match := _LOG_LINE.match(line))]
            self._watch.process(name, f"starting: {told[-1][:LOG_WIDTH]}" if told else "starting")

    def _sweep(self) -> None:
        """Nothing is left, whatever happened above. What ran before, and the broker, is not ours to end."""
        for child in self._children.values():
            child.kill()
        until = time.monotonic() + SWEEP_S
        while any(child.poll() is None for child in self._children.values()):
            if time.monotonic() > until:
                log.error("processes are left after %g s: %s", SWEEP_S, ", ".join(self._children))
                break
            time.sleep(0.05)
        spared = self._broker.pids()
        for process in set(psutil.Process().children(recursive=True)) - self._before:
            try:
                if process.pid not in spared:
                    process.kill()
            except psutil.NoSuchProcess:
                continue
