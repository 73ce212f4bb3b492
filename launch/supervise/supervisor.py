"""Carries out what `supervision.py` decides: starts the processes, watches them, starts them again, ends them. Runs on
the main thread.

Invariant: when `supervise` returns, or raises, nothing that it started is left: the guards end together with everything below
them, and what a guard that crashed may have orphaned is adopted by this process and killed.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, assert_never

import psutil

from launch.exit_codes import describe_code
from launch.observe.display import Display
from launch.observe.logtail import tail
from launch.observe.run_view import RunSnapshot
from launch.outcome import RunOutcome
from launch.processes.children import Child
from launch.processes.guard import adopt_orphans
from launch.processes.specs import ProcessSpec
from launch.supervise.events import (
    BrokerBack,
    BrokerEvent,
    Command,
    Done,
    Event,
    Exited,
    Kill,
    Notify,
    Restart,
    RestartBroker,
    Terminate,
    Tick,
)
from launch.supervise.signal_inbox import SignalInbox
from launch.supervise.supervision import Supervision
from launch.supervise.topic_events import TopicEvents
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


class SupervisedRun(Protocol):
    """The run's topics, as the supervisor sees them; `launch.observe.watch.RunWatch` is the real one."""

    def snapshot(self) -> RunSnapshot: ...

    def process(self, name: str, doing: str) -> None: ...

    def broker(self, doing: str) -> None: ...


class SupervisedBroker(Protocol):
    """The broker, as the supervisor sees it; `launch.supervise.broker_monitor.BrokerMonitor` is the real one."""

    def start(self) -> None: ...

    def events(self) -> Sequence[BrokerEvent]: ...

    def restart(self) -> None: ...

    def pids(self) -> set[int]: ...

    def close(self) -> None: ...


class Supervisor:
    """One run's processes.

    Args:
        learner, producers: what to start, all at once.
        learner_again: the learner, as it is started after it died.
        run: what the processes publish, and where it is shown what they do.
        saved: whether the run has a checkpoint that the learner can resume from.
        cwd: working folder of the processes.
        keep_open: file descriptors that stay open while a process lives.
    """

    def __init__(
        self,
        learner: ProcessSpec,
        producers: Sequence[ProcessSpec],
        *,
        learner_again: ProcessSpec,
        run: SupervisedRun,
        display: Display,
        broker: SupervisedBroker,
        saved: Callable[[], bool],
        restart: RestartConfig,
        start_timeout_s: float,
        stop_timeout_s: float,
        outage_timeout_s: float,
        cwd: Path,
        keep_open: Sequence[int] = (),
    ) -> None:
        self._specs = [learner, *producers]
        self._again = {spec.name: spec for spec in (learner_again, *producers)}
        self._learner = learner.name
        self._run, self._display, self._broker = run, display, broker
        self._saved = saved
        self._cwd, self._keep_open = cwd, keep_open
        self._children: dict[str, Child] = {}
        self._inbox = SignalInbox()
        names = [spec.name for spec in producers]
        self._topic_events = TopicEvents(learner.name, names)
        self._core = Supervision(
            learner.name,
            names,
            restart=restart,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
            outage_timeout_s=outage_timeout_s,
            now=time.monotonic(),
        )
        self._before: set[psutil.Process] = set()
        self._asked_saved = self._read_logs = 0.0

    @property
    def restarts(self) -> Mapping[str, int]:
        """How often each process was started again."""
        return self._core.restarts

    def supervise(self) -> RunOutcome:
        """Start everything and stay until nothing is left of it."""
        adopt_orphans()
        self._before = set(psutil.Process().children(recursive=True))
        with self._inbox.listening():
            try:
                self._broker.start()
                for spec in self._specs:
                    self._start(spec)
                return self._loop()
            finally:
                self._broker.close()
                self._sweep()

    def snapshot(self) -> RunSnapshot:
        """What the topics show, without what this supervisor knows to be over."""
        seen = self._topic_events.without_dead(self._run.snapshot())
        learner = "starting" if self._core.learner_away and seen.stop is None else seen.learner
        return replace(seen, learner=learner)

    def _loop(self) -> RunOutcome:
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
        # Topics before processes: a stop on control explains the ends that follow it. So does a broker that is away.
        seen = self._run.snapshot()
        yield from self._topic_events.of(seen)
        yield from self._inbox.take()
        for event in self._broker.events():
            self._run.broker("running again" if isinstance(event, BrokerBack) else event.detail)
            yield event
        for name, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                yield from self._checkpoint_events(at_once=name == self._learner)
                del self._children[name]
                self._topic_events.died(name, seen)
                self._run.process(name, f"ended with {describe_code(code)}" if code else "ended")
                yield Exited(name, code)
        yield from self._checkpoint_events(at_once=False)
        yield Tick()

    def _checkpoint_events(self, *, at_once: bool) -> Iterator[Event]:
        now = time.monotonic()
        if not self._topic_events.waits_for_checkpoint:
            return
        if at_once or now - self._asked_saved >= SAVED_PERIOD_S:
            self._asked_saved = now
            if self._saved():
                yield self._topic_events.checkpoint()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Restart(name):
                self._start_again(name)
            case RestartBroker():
                self._run.broker("starting")
                self._broker.restart()
            case Terminate(name):
                self._run.process(name, "asked to end")
                self._children[name].terminate()
            case Kill(name):
                self._display.say(f"{name} did not end in time: killing it")
                self._run.process(name, "killed")
                self._children[name].kill()
            case Notify(line, restarting):
                if restarting is not None:
                    self._run.process(restarting, "waiting to be started again")
                log.warning("%s", line)
                self._display.say(line)
            case Done():
                raise AssertionError("Done is the loop's")
            case _:
                assert_never(command)

    def _start(self, spec: ProcessSpec) -> None:
        self._children[spec.name] = Child(spec, self._cwd, self._keep_open)
        self._run.process(spec.name, "starting")

    def _start_again(self, name: str) -> None:
        spec = self._again[name]
        with spec.log.open("ab") as log_file:
            log_file.write(f"\n{STARTED_AGAIN} (restart {self._core.restarts[name]})\n".encode())
        self._start(spec)

    def _describe_starting(self) -> None:
        """Until a process shows up on the topics, the last line of its log is what it is doing."""
        now = time.monotonic()
        if now - self._read_logs < LOG_PERIOD_S or self._core.outcome is not None:
            return
        self._read_logs = now
        for name, child in self._children.items():
            lines = tail(child.log, LOG_LINES)
            first = max((i for i, line in enumerate(lines) if line.startswith(STARTED_AGAIN)), default=0)
            logged = [match["text"] for line in lines[first:] if (match := _LOG_LINE.match(line))]
            self._run.process(name, f"starting: {logged[-1][:LOG_WIDTH]}" if logged else "starting")

    def _sweep(self) -> None:
        """Leave nothing, whatever happened above. What ran before, and the broker, is not ours to end."""
        for child in self._children.values():
            child.kill()
        until = time.monotonic() + SWEEP_S
        while any(child.poll() is None for child in self._children.values()):
            if time.monotonic() > until:
                log.error("processes still running after %g s: %s", SWEEP_S, ", ".join(self._children))
                break
            time.sleep(0.05)
        spared = self._broker.pids()
        for process in set(psutil.Process().children(recursive=True)) - self._before:
            try:
                if process.pid not in spared:
                    process.kill()
            except psutil.NoSuchProcess:
                continue
