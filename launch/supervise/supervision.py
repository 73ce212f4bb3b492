"""What a supervisor decides: which process is started again, when the run is over and why, and in which order its processes end.
No process, clock or file here.

Invariants: the first cause is the one that is told; the learner is asked to end before the producers, so that it can publish
its `stop`; every state but RUNNING has a deadline, and RUNNING has one until the learner has claimed the run (after that the
learner's own timeouts bound it); nothing is started once the run is ending, nor while the broker is away; `Done` is commanded
once, last. The states, with what each waits for, are in `launch/supervise/states.py`.

What a death leads to, in RUNNING and without a `stop`:

    who                 before the first join           later
    a producer          the run ends                    started again; too often: the run ends
    one with code 0     the run ends                    it has left, unless a `stop` follows within ORDERLY_S
    the learner         the run ends                    started again with --resume; too often without a step: the run ends
    ... taken over      a second claim since it was started: the run ends, whatever else holds
    code 2              the run ends                    the run ends, unless the broker was away meanwhile
    the broker          started again if it is ours, else waited for; the run ends after the outage timeout
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

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
from launch.supervise.outage import Outage
from launch.supervise.outcome import BROKER, FAILED, FINISHED, INTERRUPTED, WRONG_INPUT, Outcome, describe_code
from launch.supervise.restarts import Deaths
from launch.supervise.states import BROKERLESS_S, END_S, KILL_S, LEAVE_S, ORDERLY_S, READ_S, State
from schemas.config.launch import RestartConfig


class Supervision:
    """Decides over one learner, its producers and their broker, from the processes' start on."""

    def __init__(
        self,
        learner: str,
        producers: Sequence[str],
        *,
        restart: RestartConfig,
        start_timeout_s: float,
        stop_timeout_s: float,
        outage_timeout_s: float,
        now: float,
    ) -> None:
        self._learner = learner
        self._producers = tuple(producers)
        self._restart = restart
        self._alive = {learner, *producers}
        self._joined: set[str] = set()
        self._since = dict.fromkeys(self._alive, now)
        self._deaths = {name: Deaths(restart.max_producer_restarts, restart, restart.window_s) for name in producers}
        self._deaths[learner] = Deaths(restart.max_restarts, restart)
        self._deaths[BROKER] = Deaths(restart.max_broker_restarts, restart, restart.window_s)
        self._due: dict[str, float] = {}  # when to start what has died
        self._left: dict[str, float] = {}  # when a producer's end with code 0 counts as having left
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._outage = Outage(outage_timeout_s)
        self._deadline: float | None = now + start_timeout_s
        self._claims = 0  # since the learner was started; the first one is its own
        self._learner_code = 0
        self._unexplained = Outcome(FAILED, "")
        self._steps = 0
        self._stop: StopSeen | None = None
        self.learner_away = False
        """The learner died and is, or will be, started again, and has not claimed the run since."""
        self.restarts: Counter[str] = Counter()
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
                return self._claimed(now)
            case Joined(name):
                self._joined.add(name)
                return []
            case Progress(steps):
                if steps > self._steps:
                    self._steps = steps
                    self._deaths[self._learner].forget()
                return []
            case StopSeen():
                return self._stop_seen(event, now)
            case Interrupted(signal):
                return self._interrupted(signal, now)
            case BrokerLost():
                return self._broker_lost(event, now)
            case BrokerBack():
                return self._broker_back(now)
            case Tick():
                return self._tick(now)
            case _:
                assert_never(event)

    # --- processes that end -------------------------------------------------------------------------------------------------

    def _exited(self, name: str, code: int, now: float) -> list[Command]:
        if name not in self._alive:
            return []
        self._alive.remove(name)
        match self.state:
            case State.RUNNING | State.ENDING:
                return self._learner_ended(code, now) if name == self._learner else self._producer_ended(name, code, now)
            case State.STOPPING_LEARNER if name == self._learner:
                return self._stop_producers(now)
            case State.UNEXPLAINED:
                return []
            case _ if not self._alive:
                return self._done()
            case _:
                return []

    def _learner_ended(self, code: int, now: float) -> list[Command]:
        self._learner_code = code
        if code == 0:
            self._settle(Outcome(FINISHED, self._stop.reason if self._stop else "all steps are trained"))
            return self._let_leave(now)
        if self._stop is not None and not self._stop.finished:
            if self._stop.ordered:
                self._settle(Outcome(INTERRUPTED, self._stop.reason))
            else:
                self._settle(Outcome(FAILED, f"the learner stopped the run: {self._stop.reason}", self._learner))
            return self._let_leave(now)
        if self._claims > 1:
            return self._taken_over(now)
        if self._stop is None and self._may_start_again(self._learner, code):
            pause = self._deaths[self._learner].died(now)
            if pause is not None:
                self.learner_away = True
                self._deadline = None
                return self._start_later(self._learner, code, pause, now)
            limit = f"{self._restart.max_restarts} restarts without a further version (launch.restart.max_restarts)"
            return self._failed(self._failure(self._learner, code, f", after {limit}, at version {self._steps}"), now)
        return self._failed(self._failure(self._learner, code), now)

    def _failed(self, outcome: Outcome, now: float) -> list[Command]:
        """The learner has ended and is not started again; with code 1 it may have obeyed a `stop` that is not read yet."""
        if self._learner_code != FAILED or self._claims == 0 or self._stop is not None or self._outage.away:
            return self._end(outcome, now)
        self._unexplained = outcome
        self._enter(State.UNEXPLAINED, now + READ_S)
        return []

    def _taken_over(self, now: float) -> list[Command]:
        return self._end(Outcome(FAILED, "another learner has taken the run over", self._learner), now)

    def _producer_ended(self, name: str, code: int, now: float) -> list[Command]:
        if self._stop is not None:
            return []  # it leaves because the run ends
        if code == 0:
            self._left[name] = now + ORDERLY_S
            return []
        if self._may_start_again(name, code):
            pause = self._deaths[name].died(now)
            if pause is not None:
                return self._start_later(name, code, pause, now)
            limit = f"{self._restart.max_producer_restarts} restarts in {self._restart.window_s:g} s"
            return self._end(self._failure(name, code, f", after {limit} (launch.restart.max_producer_restarts)"), now)
        return self._end(self._failure(name, code), now)

    def _may_start_again(self, name: str, code: int) -> bool:
        limit = self._restart.max_restarts if name == self._learner else self._restart.max_producer_restarts
        # One that finds no broker at its start takes that for wrong input.
        return limit > 0 and name in self._joined and (code != WRONG_INPUT or self._outage.touches(self._since[name]))

    def _failure(self, name: str, code: int, more: str = "") -> Outcome:
        if self._outage.away:
            return Outcome(FAILED, self._outage.why, BROKER)
        who = "the learner" if name == self._learner else name
        if code == WRONG_INPUT:
            return Outcome(WRONG_INPUT, f"{who} says that its input is wrong", name)
        return Outcome(FAILED, f"{who} ended with {describe_code(code)} before the run was finished{more}", name)

    def _start_later(self, name: str, code: int, pause: float, now: float) -> list[Command]:
        self._due[name] = now + pause
        when = f"in {pause:g} s" if not self._outage.away else "once the broker is back"
        return [Tell(f"{name} died ({describe_code(code)}), started again {when} (restart {self.restarts[name] + 1})", name)]

    def _start(self, name: str, now: float) -> Command:
        del self._due[name]
        self.restarts[name] += 1
        if name == BROKER:
            return StartBroker()
        self._alive.add(name)
        self._since[name] = now
        if name == self._learner:
            self._deadline = now + self._start_timeout_s
            self._claims = 0
        return Start(name)

    # --- the broker ---------------------------------------------------------------------------------------------------------

    def _broker_lost(self, event: BrokerLost, now: float) -> list[Command]:
        if self.state not in (State.RUNNING, State.ENDING):
            return []
        new = self._outage.begin(event.detail, now)
        if not event.ended:
            return [Tell(f"{event.detail}; it is waited for, up to {self._outage.limit}")] if new else []
        if BROKER in self._due:
            return []
        if event.full and self._restart.max_broker_restarts:  # to start it without room is no death that counts
            every = self._restart.max_backoff_s
            self._due[BROKER] = now + every
            told = f"{event.detail}: make room; it is started again every {every:g} s, for up to {self._outage.limit}"
            return [Tell(told)] if new else []
        pause = self._deaths[BROKER].died(now)
        if pause is None:
            count = self._restart.max_broker_restarts
            more = (
                f", after {count} restarts in {self._restart.window_s:g} s (launch.restart.max_broker_restarts)" if count else ""
            )
            return self._end(Outcome(FAILED, event.detail + more, BROKER), now)
        self._due[BROKER] = now + pause
        return [Tell(f"{event.detail}, started again in {pause:g} s (restart {self.restarts[BROKER] + 1})")]

    def _broker_back(self, now: float) -> list[Command]:
        if not self._outage.away:
            return []
        self._due.pop(BROKER, None)
        self._due = {name: max(at, now + READ_S) for name, at in self._due.items()}  # a `stop` that stood on control comes first
        if self.state is State.RUNNING and self._deadline is not None:
            self._deadline = now + self._start_timeout_s  # nobody could claim anything
        return [Tell(f"the broker is back after {self._outage.end(now):.0f} s")]

    def _wait_for_broker(self, now: float) -> list[Command]:
        if self._outage.too_long(now):
            return self._end(Outcome(FAILED, f"{self._outage.why}; the broker was away for {self._outage.limit}", BROKER), now)
        line = self._outage.line(now)
        return [] if line is None else [Tell(line)]

    # --- control, people, time ----------------------------------------------------------------------------------------------

    def _claimed(self, now: float) -> list[Command]:
        self._claims += 1
        if self._learner in self._alive:
            self.learner_away = False
            if self.state is State.RUNNING:
                self._deadline = None
        elif self._claims > 1 and self.state in (State.RUNNING, State.UNEXPLAINED):
            self._due.pop(self._learner, None)
            return self._taken_over(now)  # by the one before which ours has given way
        return []

    def _stop_seen(self, event: StopSeen, now: float) -> list[Command]:
        # That of a learner which died is void once the next one is started: its claim takes the stop back.
        if self._stop is not None or (self.learner_away and self._learner in self._alive):
            return []
        self._stop = event
        self._left.clear()
        waiting = self._due.pop(self._learner, None) is not None
        self._due = {name: at for name, at in self._due.items() if name == BROKER}
        if self.state not in (State.RUNNING, State.ENDING, State.UNEXPLAINED):
            return []
        if waiting or self.state is State.UNEXPLAINED:
            return self._learner_ended(self._learner_code, now)
        self._enter(State.ENDING, now + END_S)
        return []

    def _interrupted(self, signal: str, now: float) -> list[Command]:
        if self.state is State.UNEXPLAINED:
            return self._end(self._unexplained, now)
        if self.state in (State.RUNNING, State.ENDING):
            return self._end(Outcome(INTERRUPTED, f"interrupted by {signal}"), now)
        return self._kill(now)

    def _tick(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for step in (self._wait_for_broker, self._departures, self._starts):
            if self.state in (State.RUNNING, State.ENDING):
                commands += step(now)
        excused = self.state is State.RUNNING and self._outage.away
        if self._deadline is not None and now >= self._deadline and not excused:
            commands += self._late(now)
        return commands

    def _departures(self, now: float) -> list[Command]:
        told: list[Command] = []
        for name in [name for name, at in self._left.items() if now >= at]:
            del self._left[name]
            if name not in self._joined:
                return [*told, *self._end(self._failure(name, 0), now)]
            told.append(Tell(f"{name} has left the run; it is not started again"))
        return told

    def _starts(self, now: float) -> list[Command]:
        due = [name for name, at in self._due.items() if now >= at and (name == BROKER or not self._outage.away)]
        return [self._start(name, now) for name in due]

    def _late(self, now: float) -> list[Command]:
        match self.state:
            case State.RUNNING:
                cause = f"the learner did not claim the run within {self._start_timeout_s:g} s (launch.learner_start_timeout_s)"
                return self._end(Outcome(FAILED, cause, self._learner), now)
            case State.ENDING:
                late = f"the learner did not end within {END_S:g} s after its stop"
                return self._end(Outcome(FAILED, late, self._learner), now)
            case State.UNEXPLAINED:
                return self._end(self._unexplained, now)
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

    # --- the end ------------------------------------------------------------------------------------------------------------

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
        if self._outage.away:  # nobody can publish or hear anything: there is no order to keep
            self._enter(State.STOPPING_PRODUCERS, now + self._patience_s())
            return [Terminate(name) for name in self._in_order()]
        self._enter(State.STOPPING_LEARNER, now + self._stop_timeout_s)
        return [Terminate(self._learner)]

    def _patience_s(self) -> float:
        return min(BROKERLESS_S, self._stop_timeout_s) if self._outage.away else self._stop_timeout_s

    def _let_leave(self, now: float) -> list[Command]:
        if not self._alive:
            return self._done()
        self._enter(State.LEAVING, now + LEAVE_S)
        return []

    def _stop_producers(self, now: float) -> list[Command]:
        living = [name for name in self._producers if name in self._alive]
        if not self._alive:
            return self._done()
        self._enter(State.STOPPING_PRODUCERS, now + self._patience_s())
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
