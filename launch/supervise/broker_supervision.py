"""What a supervisor decides about the broker of a run: wait for it, start it again, or end the run. No process or clock here.

the broker                                  decision
is not ours, or may not be started again    wait for it, up to the outage timeout
has ended, and is ours                      start it again after a pause; too often within the window: the run ends
has ended because its disk is full          start it again every `max_backoff_s`, which counts as no death
is away for longer than the outage timeout  the run ends
"""

from __future__ import annotations

from launch.exit_codes import FAILED
from launch.outcome import BROKER, RunOutcome
from launch.supervise.events import BrokerLost, Command, Decision, Notify, RestartBroker
from launch.supervise.outage import Outage
from launch.supervise.restarts import Deaths
from schemas.config.launch import RestartConfig


class BrokerSupervision:
    """Decides about one broker. Invariant: a start is due only while the broker is away."""

    def __init__(self, restart: RestartConfig, outage_timeout_s: float) -> None:
        self._restart = restart
        self._deaths = Deaths(restart.max_broker_restarts, restart, restart.window_s)
        self._due: float | None = None  # when to start it
        self.outage = Outage(outage_timeout_s)
        self.restarts = 0

    def lost(self, event: BrokerLost, now: float) -> Decision:
        new = self.outage.begin(event.detail, now)
        if not event.ended:
            return _notify_if(new, f"{event.detail}; waiting for it, up to {self.outage.limit}")
        if self._due is not None:
            return []
        if event.full and self._restart.max_broker_restarts:  # a start without room would be no death that counts
            every = self._restart.max_backoff_s
            self._due = now + every
            how_long = f"it will be started again every {every:g} s, for up to {self.outage.limit}"
            return _notify_if(new, f"{event.detail}: make room; {how_long}")
        pause = self._deaths.died(now)
        if pause is None:
            return RunOutcome(FAILED, event.detail + self._after_restarts(), BROKER)
        self._due = now + pause
        return [Notify(f"{event.detail}; it will be started again in {pause:g} s (restart {self.restarts + 1})")]

    def back(self, now: float) -> list[Command]:
        self._due = None
        return [Notify(f"the broker is back after {self.outage.end(now):.0f} s")]

    def wait(self, now: float) -> Decision:
        """Time has passed, during an outage or not."""
        if self.outage.too_long(now):
            return RunOutcome(FAILED, f"{self.outage.why}; the broker was away for {self.outage.limit}", BROKER)
        line = self.outage.line(now)
        return [] if line is None else [Notify(line)]

    def start_if_due(self, now: float) -> list[Command]:
        if self._due is None or now < self._due:
            return []
        self._due = None
        self.restarts += 1
        return [RestartBroker()]

    def validate(self) -> None:
        """
        Raises:
            AssertionError: an invariant of this class does not hold.
        """
        assert self._due is None or self.outage.away, "a start is due of a broker that is there"

    def _after_restarts(self) -> str:
        count = self._restart.max_broker_restarts
        return f", after {count} restarts in {self._restart.window_s:g} s (launch.restart.max_broker_restarts)" if count else ""


def _notify_if(new: bool, line: str) -> list[Command]:
    return [Notify(line)] if new else []
