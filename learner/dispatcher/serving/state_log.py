"""Writes control states. Every state is whole, so of those that follow upon one burst of records only the last is made."""

from __future__ import annotations

import time
from collections.abc import Callable

from broker_config.clients.writer import LogWriter
from learner.dispatcher.deciding.control_state import StateChanges
from learner.dispatcher.state.run_state import RunState
from schemas.failpoints import armed, reach

COALESCE_S = 0.05  # a state waits so long at most for the records that came with it
WRITTEN_S = 30.0


class StateLog:
    """Invariant: what is written last says what held when it was written."""

    def __init__(self, writer: LogWriter, topic: str, state: RunState, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._topic = topic
        self._changes = StateChanges(state)
        self._clock = clock
        self._frontier = state.frontier
        """The one that was announced last, by this incarnation or an earlier one."""
        self._since: float | None = None

    def turn(self, idle: bool) -> None:
        """Called after every event; idle: nothing waits to be handled, so no newer state is on its way."""
        if not self._changes.pending():
            return
        if self._since is None:
            self._since = self._clock()
        if idle or self._clock() - self._since > COALESCE_S:
            self.write()

    def write(self) -> None:
        """Write what holds now, if it is not written yet."""
        state = self._changes.take()
        if state is None:
            return
        self._since = None
        announces, self._frontier = state.frontier != self._frontier, state.frontier
        if announces:
            reach("dispatcher.before_announce")
        written = self._writer.write(self._topic, state.to_bytes(), key="state")
        written.add_done_callback(self._writer.judge)
        if announces and armed("dispatcher.after_announce"):
            written.result(WRITTEN_S)
            reach("dispatcher.after_announce")

    def write_again(self) -> None:
        """Somebody wrote over what was written last: the next turn appends it again."""
        self._changes.forget()
