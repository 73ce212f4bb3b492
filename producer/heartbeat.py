"""The heartbeat: a thread of its own, so that a busy event loop or a long load does not look like a dead producer.

It reports how many tokens the engine has generated: a hung engine shows by a count that stands still, not by silence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from producer.clients import Writer
from producer.core import CoreSnapshot
from producer.engine.protocol import Progress, tokens_by_key
from schemas.errors import WeirError
from schemas.records.status import Heartbeat


class HeartbeatThread:
    """Publishes a heartbeat every `interval_s` once the run's uuid is known."""

    def __init__(
        self,
        writer: Writer,
        topic: str,
        name: str,
        capacity: int,
        interval_s: float,
        snapshot: Callable[[], CoreSnapshot],
        progress: Callable[[], Progress],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._writer = writer
        self._topic = topic
        self._name = name
        self._capacity = capacity
        self._interval_s = interval_s
        self._snapshot = snapshot
        self._progress = progress
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval_s):
                self._beat()
        except WeirError as error:
            self._failed(error)

    def _beat(self) -> None:
        snapshot = self._snapshot()
        if snapshot.uuid is None:
            return
        progress = self._progress()
        tokens = tokens_by_key(progress)
        record = Heartbeat(
            uuid=snapshot.uuid,
            producer=self._name,
            state=snapshot.state,
            held=snapshot.held,
            digest=snapshot.digest,
            in_hand=[item.model_copy(update={"tokens": tokens.get(f"{item.kind}/{item.key}", 0)}) for item in snapshot.in_hand],
            engine_tokens=progress.get("", 0),
            capacity=self._capacity,
        )
        self._writer.post(self._topic, record.to_bytes(), key=self._name)
