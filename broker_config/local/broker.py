"""A real Kafka broker on this machine: one node, loopback only; it keeps its data, and is back within seconds of a kill.

It owns one folder (`folder`). Brokers with different folders run side by side and share the downloaded jars.

Invariants: at most one broker runs on a folder, even if several processes start it at once (a file lock, and Kafka's own lock on
its data); its ports stay the same over restarts, so that clients find it again; only a process that is known to be this broker is
signalled.

    waits for              unblocked by                      deadline
    another's start/stop   the lock's holder ends            the caller's
    the broker to serve    its answer, or its own death      the caller's
    the broker to end      SIGTERM, then SIGKILL             the caller's
"""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from broker_config.deadline import Deadline, wait_until
from broker_config.local.artifacts import Say
from broker_config.local.folder import BrokerFolder, Instance, default_root
from broker_config.local.installation import install
from broker_config.local.ports import is_free
from broker_config.local.probe import running_instance, serves
from broker_config.local.startup import PortTaken, Startup, choose_ports, early_end
from schemas.errors import DeadlineExceeded

log = logging.getLogger(__name__)

TERM_GRACE_S = 20.0  # an orderly stop takes under a second; a busy machine may need more
KILL_GRACE_S = 10.0
END_CHECK_S = 0.02
PORT_TRIES = 3

State = Literal["running", "stopped", "starting", "unreachable"]


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What runs on a folder. `unreachable`: the process lives but does not answer; `starting`: another process starts it."""

    state: State
    root: Path
    bootstrap: str | None = None
    pid: int | None = None

    @property
    def log(self) -> Path:
        return BrokerFolder(self.root).log_file


class LocalBroker:
    """The broker that lives in one folder. Any process can start it, stop it and ask for its state.

    Args:
        root: its folder; created when missing.
        port: the port that it must listen on; None takes a free one and keeps it.
        properties: broker settings that replace the built-in ones.
        jvm_options: further options of the Java process.
        client: librdkafka settings of the health check, for `properties` that demand a login.
        say: called with one line for each slow step (the download of the jars).
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        client: Mapping[str, str] | None = None,
        say: Say = log.info,
    ) -> None:
        self.root = (root or default_root()).resolve()
        self._folder = BrokerFolder(self.root)
        self._port = port
        self._properties = dict(properties or {})
        self._jvm_options = tuple(jvm_options)
        self._client = dict(client or {})
        self._say = say
        # Kept so that this process reaps its own child once it has ended.
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str | None:
        """`host:port` of the broker, or of its last run; None before its first start."""
        last = self._folder.last_instance()
        return last.bootstrap if last else None

    @property
    def pid(self) -> int | None:
        """Process id of the running broker."""
        running = self._running()
        return running.process.pid if running else None

    def start(self, deadline: Deadline) -> str:
        """Start the broker unless it runs already; returns `host:port` once it serves.

        Raises:
            ConfigError: no Java, or the configured port is taken.
            BrokerError: the download failed, or the broker ended during its start; the message has the end of its log.
            FileError: its folder cannot be written, for example because the disk is full.
            DeadlineExceeded: it did not serve in time; a broker that this call started is stopped again.
        """
        self._folder.make()
        with self._folder.lock(deadline):
            running = self._running()
            if running is not None:
                self._await_serving(running, deadline)
                return running.bootstrap
            startup = Startup(self._folder, install(self._say), self._properties, self._jvm_options)
            taken: set[int] = set()
            while True:
                ports = choose_ports(self._folder, self._port, taken)
                try:
                    return self._start_on(ports, startup, deadline).bootstrap
                except PortTaken:
                    # Another process bound it between the check and the start. Only a port that was chosen here may be replaced.
                    taken.update(ports)
                    if self._port is not None or len(taken) > 2 * PORT_TRIES:
                        raise

    def stop(self, deadline: Deadline) -> bool:
        """Stop the broker in order, or by force if it does not end; returns whether one ran. Its data stays.

        Raises:
            DeadlineExceeded: it did not end in time.
        """
        if not self.root.is_dir():
            return False
        with self._folder.lock(deadline):
            running = self._running()
            if running is None:
                return False
            running.process.send(signal.SIGTERM)
            try:
                self._await_gone(running, deadline.at_most(TERM_GRACE_S))
            except DeadlineExceeded:
                log.warning("Kafka does not stop, killing it pid=%d", running.process.pid)
                running.process.send(signal.SIGKILL)
                self._await_gone(running, Deadline(KILL_GRACE_S))
            return True

    def kill(self) -> bool:
        """End the broker as a crash would (SIGKILL); returns whether one ran.

        Raises:
            DeadlineExceeded: the system did not end it.
        """
        running = self._running()
        if running is None or not running.process.send(signal.SIGKILL):
            return False
        self._await_gone(running, Deadline(KILL_GRACE_S))
        return True

    def fault(self) -> str | None:
        """Why the broker that ran last failed, and the room that its folder has left. None after a kill, or if nothing failed."""
        return self._folder.fault()

    def status(self) -> BrokerStatus:
        """What runs on the folder now; answers within about a second."""
        running = self._running()
        if running is None:
            return BrokerStatus("stopped", self.root, self.bootstrap)
        state: State = "running" if self._serves(running) else "unreachable"
        if state == "unreachable" and self._folder.locked():
            state = "starting"
        return BrokerStatus(state, self.root, running.bootstrap, running.process.pid)

    def _start_on(self, ports: tuple[int, int], startup: Startup, deadline: Deadline) -> Instance:
        started, self._child = startup.launch(ports)
        self._folder.record(started)
        try:
            self._await_serving(started, deadline)
        except DeadlineExceeded:
            started.process.send(signal.SIGKILL)
            raise
        log.info("Kafka serves bootstrap=%s pid=%d", started.bootstrap, started.process.pid)
        return started

    def _running(self) -> Instance | None:
        self._reap()
        return running_instance(self._folder)

    def _alive(self, running: Instance) -> bool:
        self._reap()
        return running.process.alive()

    def _reap(self) -> None:
        if self._child is not None:
            self._child.poll()

    def _serves(self, running: Instance) -> bool:
        return serves(self._folder, running, self._client)

    def _await_serving(self, running: Instance, deadline: Deadline) -> None:
        def serving() -> bool:
            if not self._alive(running):
                raise early_end(self._folder, running.process.pid)
            return self._serves(running)

        wait_until(serving, deadline, f"the local broker to serve at {running.bootstrap} (its log: {self._folder.log_file})")

    def _await_gone(self, running: Instance, deadline: Deadline) -> None:
        what = f"the local broker to end (pid {running.process.pid})"
        wait_until(lambda: not self._alive(running) and is_free(running.port), deadline, what, interval_s=END_CHECK_S)
