"""What a supervisor decides: when a run is over, why, and in which order its processes end. No process, clock or file here.

Invariants: the first cause is the one that is told; the learner is asked to end before the producers, so that it can publish
its `stop`; every state but RUNNING has a deadline, and RUNNING has one until the learner has claimed the run (after that the
learner's own timeouts bound it); `Done` is commanded once, last.

    state               waits for                       deadline             then
    RUNNING             the learner's end               start timeout, until the claim
    ENDING              the learner's end, told by a `stop` on control: END_S; by a producer that left: ORDERLY_S
    STOPPING_LEARNER    the learner's end               stop timeout         it is killed
    LEAVING             the producers' end              LEAVE_S              they are asked to end
    STOPPING_PRODUCERS  the producers' end              stop timeout         they are killed (without a broker: all, BROKERLESS_S)
    KILLING             the end of all                  KILL_S               done all the same; the shell sweeps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

END_S = 900.0  # last checkpoint and export of a large model
ORDERLY_S = 10.0  # a producer that leaves because of a `stop` can be seen before that `stop` is
LEAVE_S = 15.0
BROKERLESS_S = 10.0
KILL_S = 10.0

FINISHED, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended. `blame` names the process whose log tells more."""

    code: int
    cause: str
    blame: str | None = None

    @property
    def finished(self) -> bool:
        return self.code == FINISHED


@dataclass(frozen=True, slots=True)
class Exited:
    """A process has ended; nothing of it is left."""

    name: str
    code: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The learner has written its claim to the control topic."""


@dataclass(frozen=True, slots=True)
class StopSeen:
    """The control state holds a `stop`."""

    reason: str
    finished: bool


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A person, or the system, wants the run to end: `SIGINT`, `SIGTERM`."""

    signal: str


@dataclass(frozen=True, slots=True)
class BrokerLost:
    """The broker that this run depends on is gone."""

    detail: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Exited | Claimed | StopSeen | Interrupted | BrokerLost | Tick


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a process to end in order."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End a process and everything below it now."""

    name: str


@dataclass(frozen=True, slots=True)
class Done:
    """The run is over."""

    outcome: Outcome


Command = Terminate | Kill | Done


class State(Enum):
    RUNNING = auto()
    ENDING = auto()
    STOPPING_LEARNER = auto()
    LEAVING = auto()
    STOPPING_PRODUCERS = auto()
    KILLING = auto()
    DONE = auto()


class Supervision:
    """Decides over one learner and its producers, from their start on."""

    def __init__(
        self, learner: str, producers: Sequence[str], *, start_timeout_s: float, stop_timeout_s: float, now: float
    ) -> None:
        self._learner = learner
        self._producers = tuple(producers)
        self._alive = {learner, *producers}
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._deadline: float | None = now + start_timeout_s
        self._stop: StopSeen | None = None
        self._suspect: Outcome | None = None
        self.state = State.RUNNING
        self.outcome: Outcome | None = None

    def on(self, event: Event, now: float) -> list[Command]:
        """What to do about an event at time `now` (seconds, monotonic)."""
        if self.state is State.DONE:
            return []
        match event:
            case Exited(name, code):
                return self._exited(name, code, now)
            case Claimed():
                if self.state is State.RUNNING:
                    self._deadline = None
                return []
            case StopSeen():
                return self._stop_seen(event, now)
            case Interrupted(signal):
                return self._interrupted(signal, now)
            case BrokerLost(detail):
                if self.state not in (State.RUNNING, State.ENDING):
                    return []
                # Nobody can publish or hear anything any more, so there is no order to keep and nothing to wait long for.
                self._settle(Outcome(FAILED, detail, "broker"))
                self._enter(State.STOPPING_PRODUCERS, now + min(BROKERLESS_S, self._stop_timeout_s))
                return [Terminate(name) for name in self._in_order()]
            case Tick():
                return self._due(now) if self._deadline is not None and now >= self._deadline else []
            case _:
                assert_never(event)

    def _exited(self, name: str, code: int, now: float) -> list[Command]:
        if name not in self._alive:
            return []
        self._alive.remove(name)
        match self.state:
            case State.RUNNING | State.ENDING:
                return self._learner_ended(code, now) if name == self._learner else self._producer_ended(name, code, now)
            case State.STOPPING_LEARNER if name == self._learner:
                return self._stop_producers(now)
            case _ if not self._alive:
                return self._done()
            case _:
                return []

    def _learner_ended(self, code: int, now: float) -> list[Command]:
        if code == 0:
            self._settle(Outcome(FINISHED, self._stop.reason if self._stop else "all steps are trained"))
            return self._let_leave(now)
        if self._stop is not None and not self._stop.finished:
            self._settle(Outcome(FAILED, f"the learner stopped the run: {self._stop.reason}", self._learner))
            return self._let_leave(now)
        words = "says that its input is wrong" if code == WRONG_INPUT else f"ended with {describe_code(code)}"
        self._settle(
            Outcome(
                WRONG_INPUT if code == WRONG_INPUT else FAILED, f"the learner {words} before the run was finished", self._learner
            )
        )
        return self._stop_producers(now)

    def _producer_ended(self, name: str, code: int, now: float) -> list[Command]:
        if self._stop is not None:
            return []  # it leaves because the run ends
        outcome = Outcome(FAILED, f"{name} ended with {describe_code(code)} before the run was finished", name)
        if code != 0:
            if code == WRONG_INPUT:
                outcome = Outcome(WRONG_INPUT, f"{name} says that its input is wrong", name)
            return self._end(outcome, now)
        if self._suspect is None:
            self._suspect = outcome
            self._enter(State.ENDING, now + ORDERLY_S)
        return []

    def _stop_seen(self, event: StopSeen, now: float) -> list[Command]:
        if self._stop is None:
            self._stop = event
            self._suspect = None
            if self.state in (State.RUNNING, State.ENDING):
                self._enter(State.ENDING, now + END_S)
        return []

    def _interrupted(self, signal: str, now: float) -> list[Command]:
        if self.state in (State.RUNNING, State.ENDING):
            return self._end(Outcome(INTERRUPTED, f"interrupted by {signal}"), now)
        return self._kill(now)

    def _due(self, now: float) -> list[Command]:
        match self.state:
            case State.RUNNING:
                cause = f"the learner did not claim the run within {self._start_timeout_s:g} s (launch.learner_start_timeout_s)"
                return self._end(Outcome(FAILED, cause, self._learner), now)
            case State.ENDING:
                late = Outcome(FAILED, f"the learner did not end within {END_S:g} s after its stop", self._learner)
                return self._end(self._suspect or late, now)
            case State.STOPPING_LEARNER:
                return [Kill(self._learner), *self._stop_producers(now)]
            case State.LEAVING:
                return self._stop_producers(now)
            case State.STOPPING_PRODUCERS:
                return self._kill(now)
            case State.KILLING:
                return self._done()
            case State.DONE:
                return []
            case _:
                assert_never(self.state)

    def _settle(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome

    def _enter(self, state: State, deadline: float) -> None:
        self.state, self._deadline = state, deadline

    def _end(self, outcome: Outcome, now: float) -> list[Command]:
        """The run ends, though the learner may still run."""
        self._settle(outcome)
        if self._learner not in self._alive:
            return self._stop_producers(now)
        self._enter(State.STOPPING_LEARNER, now + self._stop_timeout_s)
        return [Terminate(self._learner)]

    def _let_leave(self, now: float) -> list[Command]:
        if not self._alive:
            return self._done()
        self._enter(State.LEAVING, now + LEAVE_S)
        return []

    def _stop_producers(self, now: float) -> list[Command]:
        living = [name for name in self._producers if name in self._alive]
        if not self._alive:
            return self._done()
        self._enter(State.STOPPING_PRODUCERS, now + self._stop_timeout_s)
        return [Terminate(name) for name in living]

    def _kill(self, now: float) -> list[Command]:
        if not self._alive:
            return self._done()
        self._enter(State.KILLING, now + KILL_S)
        return [Kill(name) for name in self._in_order()]

    def _in_order(self) -> list[str]:
        return [name for name in (self._learner, *self._producers) if name in self._alive]

    def _done(self) -> list[Command]:
        self._deadline = None
        self.state = State.DONE
        if self.outcome is None:
            raise AssertionError("a run ended without a cause")
        return [Done(self.outcome)]


def describe_code(code: int) -> str:
    """An exit code in words; 128 + n is the end by signal n."""
    if code > 128:
        import signal

        try:
            return f"signal {signal.Signals(code - 128).name}"
        except ValueError:
            return f"exit code {code}"
    return f"exit code {code}"
