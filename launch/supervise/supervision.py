"""What a supervisor decides: when the run is over and why, and in which order its processes end. No process, clock or file here.

Invariants: the first cause is the one that is reported; the learner is asked to end before the producers, so that it can publish
its `stop`; every state but RUNNING has a deadline, and RUNNING has one until the learner has claimed the run (after that the
learner's own timeouts bound it); nothing is started once the run is ending, nor while the broker is away; `Done` is commanded
once, last. The states, with what each waits for, are in `launch/supervise/states.py`. What is started again is decided in
`process_supervision.py` and `broker_supervision.py`, and asked only in RUNNING and ENDING. Beyond that:

    a producer ends with code 0    it has left, unless a `stop` follows within ORDERLY_S; if it had not joined, the run ends
    the run is claimed a second    another learner has taken it over: the run ends, whatever else holds
    time since the learner began
    a `stop` is on control         nothing is started any more, and the `stop` is the cause of the end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import assert_never

from launch.exit_codes import FAILED, FINISHED, INTERRUPTED
from launch.outcome import BROKER, RunOutcome
from launch.supervise.broker_supervision import BrokerSupervision
from launch.supervise.events import (
    BrokerBack,
    BrokerLost,
    Command,
    Decision,
    Done,
    Event,
    Exited,
    Interrupted,
    Joined,
    Kill,
    Notify,
    Restart,
    RunClaimed,
    StopSeen,
    Terminate,
    Tick,
    VersionsTrained,
)
from launch.supervise.process_supervision import ProcessSupervision
from launch.supervise.states import BROKERLESS_S, END_S, KILL_S, LEAVE_S, ORDERLY_S, READ_S, SupervisionState
from schemas.config.launch import RestartConfig

GOING_ON = (SupervisionState.RUNNING, SupervisionState.ENDING)


class Supervision:
    """Decides about one learner, its producers and their broker, from the start of the processes on."""

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
        self._broker = BrokerSupervision(restart, outage_timeout_s)
        self._outage = self._broker.outage
        self._processes = ProcessSupervision(learner, producers, restart, self._outage, now)
        self._alive = self._processes.alive
        self._left: dict[str, float] = {}  # when a producer's end with code 0 counts as having left
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._deadline: float | None = now + start_timeout_s
        self._claims = 0  # since the learner was started; the first one is its own
        self._learner_code = 0
        self._unexplained = RunOutcome(FAILED, "")
        self._stop: StopSeen | None = None
        self.learner_away = False
        """The learner died, is or will be started again, and has not claimed the run since."""
        self.state = SupervisionState.RUNNING
        self.outcome: RunOutcome | None = None

    @property
    def restarts(self) -> Mapping[str, int]:
        """How often each process, and the broker, was started again; those that were not are left out."""
        return self._processes.restarts + Counter({BROKER: self._broker.restarts})

    def on(self, event: Event, now: float) -> list[Command]:
        """What to do about an event at time `now` (seconds, monotonic)."""
        if self.state is SupervisionState.DONE:
            return []
        match event:
            case Exited(name, code):
                return self._exited(name, code, now)
            case RunClaimed():
                return self._claimed(now)
            case Joined(name):
                self._processes.joined(name)
                return []
            case VersionsTrained(count):
                self._processes.trained(count)
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

    def validate(self) -> None:
        """
        Raises:
            AssertionError: an invariant of the supervision does not hold.
        """
        self._processes.validate()
        self._broker.validate()
        ending = self.state not in (*GOING_ON, SupervisionState.UNEXPLAINED)
        assert not ending or self.outcome is not None, f"{self.state} without a cause"
        bounded = self.state not in (SupervisionState.RUNNING, SupervisionState.DONE)
        assert not bounded or self._deadline is not None, f"{self.state} without a deadline"

    # --- processes that end -------------------------------------------------------------------------------------------------

    def _exited(self, name: str, code: int, now: float) -> list[Command]:
        if name not in self._alive:
            return []
        self._alive.remove(name)
        match self.state:
            case SupervisionState.RUNNING | SupervisionState.ENDING:
                return self._learner_ended(code, now) if name == self._learner else self._producer_ended(name, code, now)
            case SupervisionState.STOPPING_LEARNER if name == self._learner:
                return self._stop_producers(now)
            case SupervisionState.UNEXPLAINED:
                return []
            case _ if not self._alive:
                return self._done()
            case _:
                return []

    def _learner_ended(self, code: int, now: float) -> list[Command]:
        self._learner_code = code
        if code == 0:
            self._settle(RunOutcome(FINISHED, self._stop.reason if self._stop else "all steps are trained"))
            return self._let_leave(now)
        if self._stop is not None and not self._stop.finished:
            if self._stop.ordered:
                self._settle(RunOutcome(INTERRUPTED, self._stop.reason))
            else:
                self._settle(RunOutcome(FAILED, f"the learner stopped the run: {self._stop.reason}", self._learner))
            return self._let_leave(now)
        if self._claims > 1:
            return self._taken_over(now)
        if self._stop is not None:
            return self._failed(self._processes.failure(self._learner, code), now)
        decision = self._processes.died(self._learner, code, now)
        if isinstance(decision, RunOutcome):
            return self._failed(decision, now)
        self.learner_away = True
        self._deadline = None
        return decision

    def _failed(self, outcome: RunOutcome, now: float) -> list[Command]:
        """The learner has ended and is not started again; with code 1 it may have obeyed a `stop` that is not read yet."""
        if self._learner_code != FAILED or self._claims == 0 or self._stop is not None or self._outage.away:
            return self._end(outcome, now)
        self._unexplained = outcome
        self._enter(SupervisionState.UNEXPLAINED, now + READ_S)
        return []

    def _taken_over(self, now: float) -> list[Command]:
        return self._end(RunOutcome(FAILED, "another learner has taken the run over", self._learner), now)

    def _producer_ended(self, name: str, code: int, now: float) -> list[Command]:
        if self._stop is not None:
            return []  # it leaves because the run ends
        if code == 0:
            self._left[name] = now + ORDERLY_S
            return []
        return self._obey(self._processes.died(name, code, now), now)

    def _obey(self, decision: Decision, now: float) -> list[Command]:
        return self._end(decision, now) if isinstance(decision, RunOutcome) else decision

    # --- the broker ---------------------------------------------------------------------------------------------------------

    def _broker_lost(self, event: BrokerLost, now: float) -> list[Command]:
        if self.state not in GOING_ON:
            return []
        return self._obey(self._broker.lost(event, now), now)

    def _broker_back(self, now: float) -> list[Command]:
        if not self._outage.away:
            return []
        self._processes.delay_starts(now + READ_S)  # a `stop` that was on control comes first
        if self.state is SupervisionState.RUNNING and self._deadline is not None:
            self._deadline = now + self._start_timeout_s  # nobody could claim anything
        return self._broker.back(now)

    def _wait_for_broker(self, now: float) -> list[Command]:
        return self._obey(self._broker.wait(now), now)

    # --- control, people, time ----------------------------------------------------------------------------------------------

    def _claimed(self, now: float) -> list[Command]:
        self._claims += 1
        if self._learner in self._alive:
            self.learner_away = False
            if self.state is SupervisionState.RUNNING:
                self._deadline = None
        elif self._claims > 1 and self.state in (SupervisionState.RUNNING, SupervisionState.UNEXPLAINED):
            self._processes.cancel_start(self._learner)
            return self._taken_over(now)  # by the one that ours has given way to
        return []

    def _stop_seen(self, event: StopSeen, now: float) -> list[Command]:
        # The stop of a learner that died is void once the next learner is started, whose claim takes it back.
        if self._stop is not None or (self.learner_away and self._learner in self._alive):
            return []
        self._stop = event
        self._left.clear()
        waiting = self._processes.cancel_start(self._learner)
        self._processes.cancel_starts()
        if self.state not in (SupervisionState.RUNNING, SupervisionState.ENDING, SupervisionState.UNEXPLAINED):
            return []
        if waiting or self.state is SupervisionState.UNEXPLAINED:
            return self._learner_ended(self._learner_code, now)
        self._enter(SupervisionState.ENDING, now + END_S)
        return []

    def _interrupted(self, signal: str, now: float) -> list[Command]:
        if self.state is SupervisionState.UNEXPLAINED:
            return self._end(self._unexplained, now)
        if self.state in GOING_ON:
            return self._end(RunOutcome(INTERRUPTED, f"interrupted by {signal}"), now)
        return self._kill(now)

    def _tick(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for step in (self._wait_for_broker, self._departures, self._starts):
            if self.state in GOING_ON:
                commands += step(now)
        excused = self.state is SupervisionState.RUNNING and self._outage.away
        if self._deadline is not None and now >= self._deadline and not excused:
            commands += self._late(now)
        return commands

    def _departures(self, now: float) -> list[Command]:
        departed: list[Command] = []
        for name in [name for name, at in self._left.items() if now >= at]:
            del self._left[name]
            if not self._processes.has_joined(name):
                return [*departed, *self._end(self._processes.failure(name, 0), now)]
            departed.append(Notify(f"{name} has left the run; it will not be started again"))
        return departed

    def _starts(self, now: float) -> list[Command]:
        if self._outage.away:
            return self._broker.start_if_due(now)
        commands = self._processes.start_due(now)
        if Restart(self._learner) in commands:
            self._deadline = now + self._start_timeout_s
            self._claims = 0
        return commands

    def _late(self, now: float) -> list[Command]:
        match self.state:
            case SupervisionState.RUNNING:
                cause = f"the learner did not claim the run within {self._start_timeout_s:g} s (launch.learner_start_timeout_s)"
                return self._end(RunOutcome(FAILED, cause, self._learner), now)
            case SupervisionState.ENDING:
                late = f"the learner did not end within {END_S:g} s after its stop"
                return self._end(RunOutcome(FAILED, late, self._learner), now)
            case SupervisionState.UNEXPLAINED:
                return self._end(self._unexplained, now)
            case SupervisionState.STOPPING_LEARNER:
                return [Kill(self._learner), *self._stop_producers(now)]
            case SupervisionState.LEAVING:
                return self._stop_producers(now)
            case SupervisionState.STOPPING_PRODUCERS:
                return self._kill(now)
            case SupervisionState.KILLING:
                return self._done()
            case SupervisionState.DONE:
                return []
            case _:
                assert_never(self.state)

    # --- the end ------------------------------------------------------------------------------------------------------------

    def _settle(self, outcome: RunOutcome) -> None:
        if self.outcome is None:
            self.outcome = outcome

    def _enter(self, state: SupervisionState, deadline: float) -> None:
        self.state, self._deadline = state, deadline

    def _end(self, outcome: RunOutcome, now: float) -> list[Command]:
        """The run ends, though the learner may still run."""
        self._settle(outcome)
        if self._learner not in self._alive:
            return self._stop_producers(now)
        if self._outage.away:  # nobody can publish or read anything: no order needs to be kept
            self._enter(SupervisionState.STOPPING_PRODUCERS, now + self._patience_s())
            return [Terminate(name) for name in self._processes.living]
        self._enter(SupervisionState.STOPPING_LEARNER, now + self._stop_timeout_s)
        return [Terminate(self._learner)]

    def _patience_s(self) -> float:
        return min(BROKERLESS_S, self._stop_timeout_s) if self._outage.away else self._stop_timeout_s

    def _let_leave(self, now: float) -> list[Command]:
        if not self._alive:
            return self._done()
        self._enter(SupervisionState.LEAVING, now + LEAVE_S)
        return []

    def _stop_producers(self, now: float) -> list[Command]:
        living = [name for name in self._producers if name in self._alive]
        if not self._alive:
            return self._done()
        self._enter(SupervisionState.STOPPING_PRODUCERS, now + self._patience_s())
        return [Terminate(name) for name in living]

    def _kill(self, now: float) -> list[Command]:
        if not self._alive:
            return self._done()
        self._enter(SupervisionState.KILLING, now + KILL_S)
        return [Kill(name) for name in self._processes.living]

    def _done(self) -> list[Command]:
        self._deadline = None
        self.state = SupervisionState.DONE
        if self.outcome is None:
            raise AssertionError("a run ended without a cause")
        return [Done(self.outcome)]
