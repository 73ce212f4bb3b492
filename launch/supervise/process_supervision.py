"""What a supervisor decides about a process of the run that has died: start it again, or end the run. No process or clock here.

    who                 before it has joined    later
    a producer          the run ends            it is started again after a pause; too often within the window: the run ends
    the learner         the run ends            likewise; too often without a further version: the run ends
    code 2              the run ends            the run ends, unless the broker was away since the process was started

Invariant: a process is alive, or due to be started again, or neither; never both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from launch.exit_codes import FAILED, WRONG_INPUT, describe_code
from launch.outcome import BROKER, RunOutcome
from launch.supervise.events import Command, Decision, Notify, Restart
from launch.supervise.outage import Outage
from launch.supervise.restarts import Deaths
from schemas.config.launch import RestartConfig


class ProcessSupervision:
    """One learner and its producers: who is alive, and who is started again when."""

    def __init__(self, learner: str, producers: Sequence[str], restart: RestartConfig, outage: Outage, now: float) -> None:
        self._learner = learner
        self._order = (learner, *producers)
        self._restart = restart
        self._outage = outage
        self._since = dict.fromkeys(self._order, now)
        self._joined: set[str] = set()
        self._deaths = {name: Deaths(restart.max_producer_restarts, restart, restart.window_s) for name in producers}
        self._deaths[learner] = Deaths(restart.max_restarts, restart)
        self._due: dict[str, float] = {}
        self._trained = 0
        self.alive = set(self._order)
        self.restarts: Counter[str] = Counter()

    @property
    def living(self) -> list[str]:
        """The learner first."""
        return [name for name in self._order if name in self.alive]

    def has_joined(self, name: str) -> bool:
        return name in self._joined

    def joined(self, name: str) -> None:
        self._joined.add(name)

    def trained(self, count: int) -> None:
        """The number of versions trained; a further one means that the learner is doing well."""
        if count > self._trained:
            self._trained = count
            self._deaths[self._learner].forget()

    def died(self, name: str, code: int, now: float) -> Decision:
        limit = self._restart.max_restarts if name == self._learner else self._restart.max_producer_restarts
        # A process that finds no broker at its start takes that for wrong input.
        excused = code != WRONG_INPUT or self._outage.touches(self._since[name])
        if not (limit > 0 and self.has_joined(name) and excused):
            return self.failure(name, code)
        pause = self._deaths[name].died(now)
        if pause is None:
            return self.failure(name, code, self._after_restarts(name))
        self._due[name] = now + pause
        when = f"in {pause:g} s" if not self._outage.away else "once the broker is back"
        line = f"{name} died ({describe_code(code)}); it will be started again {when} (restart {self.restarts[name] + 1})"
        return [Notify(line, restarting=name)]

    def failure(self, name: str, code: int, more: str = "") -> RunOutcome:
        """The outcome of a run that ends because `name` has ended."""
        if self._outage.away:
            return RunOutcome(FAILED, self._outage.why, BROKER)
        who = "the learner" if name == self._learner else name
        if code == WRONG_INPUT:
            return RunOutcome(WRONG_INPUT, f"{who} reported wrong input", name)
        return RunOutcome(FAILED, f"{who} ended with {describe_code(code)} before the run was finished{more}", name)

    def start_due(self, now: float) -> list[Command]:
        names = [name for name, at in self._due.items() if now >= at]
        for name in names:
            del self._due[name]
            self.restarts[name] += 1
            self.alive.add(name)
            self._since[name] = now
        return [Restart(name) for name in names]

    def delay_starts(self, until: float) -> None:
        self._due = {name: max(at, until) for name, at in self._due.items()}

    def cancel_start(self, name: str) -> bool:
        """Returns whether one was due."""
        return self._due.pop(name, None) is not None

    def cancel_starts(self) -> None:
        self._due.clear()

    def validate(self) -> None:
        """
        Raises:
            AssertionError: an invariant of this class does not hold.
        """
        assert not self.alive & self._due.keys(), f"alive and due to be started: {self.alive & self._due.keys()}"

    def _after_restarts(self, name: str) -> str:
        if name == self._learner:
            limit = f"{self._restart.max_restarts} restarts without a further version (launch.restart.max_restarts)"
            return f", after {limit}, at version {self._trained}"
        window = f"{self._restart.max_producer_restarts} restarts in {self._restart.window_s:g} s"
        return f", after {window} (launch.restart.max_producer_restarts)"
