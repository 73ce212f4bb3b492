"""Writes control states. Every state is whole, so of those that follow upon one burst of records only the last is written."""

from __future__ import annotations

import time

from broker_config.writer import LogWriter
from schemas.control import State
from schemas.failpoints import armed, reach

COALESCE_S = 0.05  # a state waits so long at most for the records that came with it
WRITTEN_S = 30.0


class StateLog:
    def __init__(self, writer: LogWriter, topic: str, announced: int | None) -> None:
        """announced: F of the state that this learner found."""
        self._writer = writer
        self._topic = topic
        self._announced = announced
        self._unwritten: State | None = None
        self._since = 0.0

    def put(self, state: State) -> None:
        if self._unwritten is None:
            self._since = time.monotonic()
        self._unwritten = state

    def write_if_due(self, idle: bool) -> None:
        """idle: nothing waits to be handled, so no newer state is on its way."""
        if self._unwritten is not None and (idle or time.monotonic() - self._since > COALESCE_S):
            self.write()

    def write(self) -> None:
        """Write what was put last, if it is not written yet."""
        if self._unwritten is None:
            return
        state, self._unwritten = self._unwritten, None
        announces, self._announced = state.F != self._announced, state.F
        if announces:
            reach("dispatcher.before_announce")
        written = self._writer.write(self._topic, state.to_bytes(), key="state")
        written.add_done_callback(self._writer.judge)
        if announces and armed("dispatcher.after_announce"):
            written.result(WRITTEN_S)
            reach("dispatcher.after_announce")
