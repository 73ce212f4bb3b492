"""Writes control states. Every state is whole, so of those that follow upon one burst of records only the last is made."""

from __future__ import annotations

import time

from broker_config.clients.writer import LogWriter
from learner.dispatcher.deciding.core import Dispatcher
from schemas.failpoints import armed, reach

COALESCE_S = 0.05  # a state waits so long at most for the records that came with it
WRITTEN_S = 30.0


class StateLog:
    def __init__(self, writer: LogWriter, topic: str, core: Dispatcher) -> None:
        self._writer = writer
        self._topic = topic
        self._core = core
        self._announced = core.frontier
        self._since: float | None = None

    def turn(self, idle: bool) -> None:
        """Called after every event; idle: nothing waits to be handled, so no newer state is on its way."""
        if not self._core.state_changed():
            return
        if self._since is None:
            self._since = time.monotonic()
        if idle or time.monotonic() - self._since > COALESCE_S:
            self.write()

    def write(self) -> None:
        """Write what holds now, if it is not written yet."""
        if not self._core.state_changed():
            return
        self._since = None
        state = self._core.take_state()
        announces, self._announced = state.frontier != self._announced, state.frontier
        if announces:
            reach("dispatcher.before_announce")
        written = self._writer.write(self._topic, state.to_bytes(), key="state")
        written.add_done_callback(self._writer.judge)
        if announces and armed("dispatcher.after_announce"):
            written.result(WRITTEN_S)
            reach("dispatcher.after_announce")
