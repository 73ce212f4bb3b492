"""Watches a run's broker during the run: reports when it is away and when it is back, and starts a local one again.

A thread asks the broker and starts it; `launch/supervise/supervision.py` decides whether and when. Invariants: a broker is
started again at the address that it had, or not at all, since everybody looks for it there; when `close` returns, no start is
under way, and one that was cut short has left no process.

    the broker              known by                                           at once, or after
    a local one has ended   its process is gone                                at once
    one does not listen     the connection is refused                          ASK_PERIOD_S
    one does not answer     no answer to `describe_cluster` for SILENT_S       SILENT_S and one ASK_S
    one serves in part      topics of the run have no leader for SILENT_S      SILENT_S
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait

from confluent_kafka.admin import AdminClient

from broker_config.clients import admin
from broker_config.clients.settings import make_admin
from broker_config.deadline import Deadline, wait_until
from broker_config.local.broker import LocalBroker
from broker_config.local.ports import is_free
from broker_config.preflight import parse_servers
from broker_config.processes import ProcessId
from launch.processes.broker import BrokerUse
from launch.supervise.events import BrokerBack, BrokerEvent, BrokerLost
from schemas.config.kafka import KafkaConfig
from schemas.disk import means_full_disk
from schemas.errors import BrokerAway, BrokerError, DeadlineExceeded, WeirError

log = logging.getLogger(__name__)

ASK_PERIOD_S = 1.0
ASK_S = 3.0
SILENT_S = 6.0
CONNECT_S = 1.0
RESTART_S = 60.0
SHOWN = 3
PORT_S = 10.0  # a killed process gives its port back a moment after it is gone


class BrokerMonitor:
    """`start` it, take its `events` often, and `close` it before the broker is released.

    Args:
        topics: gives the topics that the run uses at present.
    """

    def __init__(self, use: BrokerUse, kafka: KafkaConfig, topics: Callable[[], Collection[str]] = tuple) -> None:
        self._use, self._kafka = use, kafka
        self._topics = topics
        self._process = use.process
        self._events: queue.SimpleQueue[BrokerEvent] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._asked = threading.Event()
        self._away = threading.Event()
        self._dead = False  # the process is known to be gone, and this has been reported
        self._lock = threading.Lock()  # over `_process` and `_dead`
        self._thread = threading.Thread(target=self._run, name="broker-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def events(self) -> list[BrokerEvent]:
        """What has happened since the last call.

        Raises:
            RuntimeError: the thread has died.
        """
        self._look_at_process()
        if not self._thread.is_alive() and not self._closing.is_set():
            raise RuntimeError("the thread that watches the broker has died")
        found: list[BrokerEvent] = []
        while not self._events.empty():
            found.append(self._events.get())
        return found

    def restart(self) -> None:
        """Start the local broker again; returns at once."""
        self._asked.set()
        self._wake.set()

    def pids(self) -> set[int]:
        """Of the broker, which may be a child of this process and must not be ended with the others."""
        return {self._process.pid} if self._process is not None else set()

    def close(self) -> None:
        """End the thread, and a start that is under way."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(RESTART_S)

    def _look_at_process(self) -> bool:
        """Whether the broker may be there, as far as its process shows."""
        with self._lock:
            process = self._process
            if process is not None and not self._dead and not process.alive():
                self._dead = True
                why = self._use.local.fault() if self._use.local is not None else None
                self._lost(
                    f"the local broker (pid {process.pid}) has ended" + (f": {why}" if why else ""), ended=self._use.on_demand
                )
            return not self._dead

    # --- the thread ---------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        client = make_admin(self._kafka, self._use.bootstrap, "weir.broker-monitor")
        answered = time.monotonic()
        leaderless_since: float | None = None
        while not self._closing.is_set():
            if self._asked.is_set():
                self._asked.clear()
                self._start_broker()
            elif self._answers(client):
                answered = time.monotonic()
                leaderless = self._leaderless(client)
                if leaderless is None:
                    pass  # asked again
                elif not leaderless:
                    leaderless_since = None
                    self._back()
                elif leaderless_since is None:
                    leaderless_since = answered
                elif not self._away.is_set() and answered - leaderless_since >= SILENT_S:
                    self._lost(
                        f"the broker at {self._use.bootstrap} serves, but nobody leads {_few(leaderless)}: one of its nodes is "
                        "down, or a disk of it is full or broken; its log says which"
                    )
            elif self._look_at_process() and not self._away.is_set():
                if not self._listens():
                    self._lost(f"nobody listens at {self._use.bootstrap}")
                elif time.monotonic() - answered >= SILENT_S:
                    self._lost(f"the broker at {self._use.bootstrap} does not answer")
            self._wake.wait(ASK_PERIOD_S)
            self._wake.clear()

    def _answers(self, client: AdminClient) -> bool:
        asked = client.describe_cluster(request_timeout=ASK_S)
        until = Deadline(2 * ASK_S)
        while not asked.done() and not self._closing.is_set() and not until.expired:
            wait([asked], timeout=0.1)
        return asked.done() and asked.exception() is None

    def _leaderless(self, client: AdminClient) -> list[str] | None:
        """Partitions of the run's topics that can be neither read nor written though the broker answers; None: not known now."""
        try:
            found = admin.describe(client, self._topics(), Deadline(ASK_S))
        except (BrokerAway, DeadlineExceeded):
            return None
        except BrokerError:
            return []  # no right to ask: whoever needs the topic gets that error
        return [f"{name}[{index}]" for name, info in sorted(found.items()) for index in info.leaderless]

    def _listens(self) -> bool:
        for server in parse_servers(self._use.bootstrap):
            try:
                socket.create_connection((server.host, server.port), timeout=CONNECT_S).close()
            except ConnectionRefusedError:
                continue
            except OSError:
                return True  # not known; how long it stays silent decides
            return True
        return False

    def _start_broker(self) -> None:
        known = self._use.local
        if known is None:
            raise RuntimeError("a broker elsewhere cannot be started")
        port = int(self._use.bootstrap.rpartition(":")[2])
        deadline = _Cancellable(RESTART_S, self._closing)
        try:
            if known.pid is None:
                wait_until(lambda: is_free(port), deadline.at_most(PORT_S), f"port {port} of the local broker to be free")
            bootstrap = LocalBroker(known.root, port=port).start(deadline)
        except (WeirError, OSError) as error:
            if not self._closing.is_set():
                log.warning("the local broker did not start: %s", error)
                self._lost(f"the local broker did not start ({str(error).splitlines()[0]})", ended=True)
            return
        if bootstrap == self._use.bootstrap:
            self._back()
        else:
            self._lost(f"somebody has started the local broker at another address, {bootstrap}", ended=True)

    def _lost(self, detail: str, *, ended: bool = False) -> None:
        self._away.set()
        self._events.put(BrokerLost(detail, ended, ended and means_full_disk(detail)))

    def _back(self) -> None:
        if self._use.local is not None and self._dead:
            pid = self._use.local.pid
            process = ProcessId.of(pid) if pid is not None else None
            if process is None:
                return  # something else than the local broker answers there
            with self._lock:
                self._process, self._dead = process, False
        if self._away.is_set():
            self._away.clear()
            self._events.put(BrokerBack())


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


class _Cancellable(Deadline):
    """A deadline that is over at once when `over` is set."""

    def __init__(self, seconds: float, over: threading.Event) -> None:
        super().__init__(seconds)
        self._over = over

    @property
    def expired(self) -> bool:
        return self._over.is_set() or super().expired

    def remaining(self) -> float:
        return 0.0 if self._over.is_set() else super().remaining()

    def at_most(self, seconds: float) -> Deadline:
        return _Cancellable(min(seconds, self.remaining()), self._over)
