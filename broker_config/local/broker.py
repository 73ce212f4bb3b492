"""A real Kafka broker on this machine: one node, loopback only, data kept, back within seconds of a kill.

Owns one folder: `data/` (the log), `server.properties`, `broker.json` (who runs it, on which ports), `bootstrap`, `broker.log`.
Brokers with folders of their own live side by side and share the downloaded jars.

Invariants: at most one broker runs on a folder, whoever starts it at the same time (a file lock, and the broker's own lock on
its data); the broker's ports stay the same over restarts, so that clients find it again; only a process that is known to be
this broker is signalled.

    waits for              unblocked by                      deadline
    another's start/stop   the lock's holder ends            the caller's
    the broker to serve    its answer, or its own death      the caller's
    the broker to end      SIGTERM, then SIGKILL             the caller's
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from broker_config.cache import kafka_cache
from broker_config.deadline import Deadline, wait_until
from broker_config.local.artifacts import Say
from broker_config.local.broker_log import fault
from broker_config.local.installation import Installation, install
from broker_config.local.ports import FIRST, LOW, ephemeral_low, free_ports, is_free
from broker_config.local.server_properties import LOG4J2, new_cluster_id, parse, ports_of, render, server_properties
from broker_config.processes import ProcessId, file_lock
from schemas.disk import room, told, write_whole
from schemas.errors import BrokerError, ConfigError, DeadlineExceeded, Problem

log = logging.getLogger(__name__)

MAIN = "kafka.Kafka"
HEAP = ("-Xms64m", "-Xmx512m")
TERM_GRACE_S = 20.0  # a clean stop takes under a second; a busy machine may need more
KILL_GRACE_S = 10.0
PROBE_S = 0.5
PORT_TRIES = 3
PORT_WAIT_S = 3.0
CANNOT_WRITE = "the local broker's folder cannot be written"

State = Literal["running", "stopped", "starting", "unreachable"]


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What runs on a folder. `unreachable`: the process lives but does not answer; `starting`: another process is at it."""

    state: State
    root: Path
    bootstrap: str | None = None
    pid: int | None = None

    @property
    def log(self) -> Path:
        return self.root / "broker.log"


@dataclass(frozen=True, slots=True)
class _Running:
    process: ProcessId
    port: int
    controller_port: int

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def default_root() -> Path:
    """The folder of the broker that is started when no other one is configured."""
    return kafka_cache() / "broker"


def bootstrap_file(root: Path) -> Path:
    """A file with nothing but the broker's `host:port`, for shell scripts."""
    return root / "bootstrap"


class LocalBroker:
    """The broker that lives in one folder; start, stop and ask it from any process.

    Args:
        root: its folder; made when missing.
        port: the port that it must listen on; None takes a free one and keeps it.
        properties: broker settings that replace the built-in ones.
        jvm_options: further options of the Java process.
        client: librdkafka settings of the health check, for `properties` that demand a login.
        say: told each slow step (the download of the jars), one line each.
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
        self._port = port
        self._properties = dict(properties or {})
        self._jvm_options = tuple(jvm_options)
        self._client = dict(client or {})
        self._say = say
        # Kept so that the ended child of this very process is reaped.
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str | None:
        """`host:port` that the broker has, or had when it last ran; None before its first start."""
        known = self._known()
        return known.bootstrap if known else None

    @property
    def pid(self) -> int | None:
        """Process id of the running broker."""
        running = self._running()
        return running.process.pid if running else None

    def start(self, deadline: Deadline) -> str:
        """Start the broker unless it runs already; returns `host:port` once it serves.

        Raises:
            ConfigError: no Java, or the configured port is taken.
            BrokerError: the download failed, or the broker ended during its start; the end of its log is in the message.
            FileError: its folder cannot be written, as on a full disk.
            DeadlineExceeded: it did not serve in time; a broker that this call started is stopped again.
        """
        with told(CANNOT_WRITE, self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        with self._lock(deadline):
            running = self._running()
            if running is not None:
                self._await_serving(running, deadline)
                return running.bootstrap
            installation = install(self._say)
            taken: set[int] = set()
            while True:
                ports = self._choose_ports(taken)
                try:
                    return self._start_on(installation, ports, deadline).bootstrap
                except _PortTaken:
                    # Somebody bound it between the probe and the start; only a chosen port may be changed for another.
                    taken.update(ports)
                    if self._port is not None or len(taken) > 2 * PORT_TRIES:
                        raise

    def stop(self, deadline: Deadline) -> bool:
        """Stop the broker in order, by force if it does not go; returns whether one ran. Its data stays.

        Raises:
            DeadlineExceeded: it did not end in time.
        """
        if not self.root.is_dir():
            return False
        with self._lock(deadline):
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
        """Why the broker that ran last failed, with how much room its folder has. None after a kill, or if all is well."""
        try:
            found = fault(self._log.read_text(encoding="utf-8", errors="replace").splitlines())
        except OSError:
            return None  # never started, or its disk is broken
        return None if found is None else f"{found}; {room(self.root)}"

    def status(self) -> BrokerStatus:
        """What runs on the folder now; answers within a second or so."""
        running = self._running()
        if running is None:
            return BrokerStatus("stopped", self.root, self.bootstrap)
        state: State = "running" if self._serves(running) else "unreachable"
        if state == "unreachable" and self._starting():
            state = "starting"
        return BrokerStatus(state, self.root, running.bootstrap, running.process.pid)

    # What is on disk

    @property
    def _data(self) -> Path:
        return self.root / "data"

    @property
    def _config(self) -> Path:
        return self.root / "server.properties"

    @property
    def _record(self) -> Path:
        return self.root / "broker.json"

    @property
    def _formatted(self) -> Path:
        """Kafka writes it last when it formats; it holds the cluster id."""
        return self._data / "meta.properties"

    @property
    def _log(self) -> Path:
        return self.root / "broker.log"

    @property
    def _logging(self) -> tuple[str]:
        return (f"-Dlog4j2.configurationFile={self.root / 'log4j2.properties'}",)

    def _lock(self, deadline: Deadline) -> AbstractContextManager[None]:
        return file_lock(self.root / "lock", deadline, "another start or stop of the local broker")

    def _starting(self) -> bool:
        try:
            with self._lock(Deadline(0)):
                return False
        except DeadlineExceeded:
            return True

    def _known(self) -> _Running | None:
        """Who was started last, whether or not it lives."""
        try:
            record = json.loads(self._record.read_text(encoding="utf-8"))
            return _Running(ProcessId(record["pid"], record["started"]), record["port"], record["controller_port"])
        except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
            return None

    def _running(self) -> _Running | None:
        if self._child is not None:
            self._child.poll()
        known = self._known()
        if known is not None and known.process.alive():
            return known
        return self._orphan()

    def _orphan(self) -> _Running | None:
        """A broker on this folder whose starter died before it wrote down its id: known by its command line."""
        for process in psutil.process_iter(["pid", "cmdline"]):
            command = process.info["cmdline"] or []
            if command[-2:] == [MAIN, str(self._config)]:
                identity = ProcessId.of(process.info["pid"])
                if identity is not None:
                    return _Running(identity, *ports_of(self._config.read_text(encoding="utf-8")))
        return None

    # Starting

    def _choose_ports(self, taken: set[int]) -> tuple[int, int]:
        if self._port is not None:
            if not is_free(self._port):
                why = "another process listens on it"
                raise ConfigError([Problem("local broker port", self._port, why, "stop that process, or choose another port")])
            return self._port, free_ports(1, first=self._port + 1, avoid={self._port, *taken})[0]
        known = self._known()
        if known is not None and not taken:
            # A killed process gives its ports back a moment after it is gone; clients look for the broker where it was.
            former, wait = (known.port, known.controller_port), Deadline(PORT_WAIT_S)
            while not wait.expired:
                if all(is_free(port) for port in former):
                    return former
                time.sleep(0.05)
            log.warning("former port of the local broker is taken, choosing another port=%d", known.port)
        # Brokers of other folders look elsewhere first, so that two that start at once seldom meet.
        first = FIRST if self.root == default_root() else LOW + zlib.crc32(bytes(self.root)) % (ephemeral_low() - LOW)
        port, controller_port = free_ports(2, first=first, avoid=taken)
        return port, controller_port

    def _start_on(self, installation: Installation, ports: tuple[int, int], deadline: Deadline) -> _Running:
        _write(self.root / "log4j2.properties", LOG4J2)
        self._format(installation, ports)
        _write(self._config, render(server_properties(self._data, *ports, self._properties)))
        started = self._launch(installation, ports)
        try:
            self._await_serving(started, deadline)
        except DeadlineExceeded:
            started.process.send(signal.SIGKILL)
            raise
        log.info("Kafka serves bootstrap=%s pid=%d", started.bootstrap, started.process.pid)
        return started

    def _format(self, installation: Installation, ports: tuple[int, int]) -> None:
        """Give a new broker its data folder; by one rename, so that a half formatted one is never taken for whole."""
        if self._formatted.is_file():
            return
        if self._data.exists():
            raise BrokerError(f"{self._data} is no data folder of a broker; move it away, then start again")
        unfinished = self.root / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        config = self.root / "format.properties"
        _write(config, render(server_properties(unfinished, *ports, self._properties)))
        arguments = ("format", "-t", new_cluster_id(), "-c", str(config), "--standalone")
        doing = "formatting the local broker's data folder"
        installation.run("kafka.tools.StorageTool", *arguments, doing=doing, options=self._logging)
        os.replace(unfinished, self._data)
        config.unlink()

    def _launch(self, installation: Installation, ports: tuple[int, int]) -> _Running:
        with told(CANNOT_WRITE, self.root):
            if self._log.exists():
                os.replace(self._log, self.root / "broker.log.1")
            self._log.touch()
        command = installation.command(MAIN, str(self._config), options=(*HEAP, *self._logging, *self._jvm_options))
        with self._log.open("ab") as output:
            # A session of its own: a Ctrl-C at the terminal, or the end of the starter, is not the broker's end.
            self._child = subprocess.Popen(
                command, cwd=self.root, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        identity = ProcessId.of(self._child.pid)
        if identity is None:
            raise self._ended_early(self._child.pid)
        started = _Running(identity, *ports)
        record = {"pid": identity.pid, "started": identity.started, "port": ports[0], "controller_port": ports[1]}
        _write(self._record, json.dumps(record) + "\n")
        _write(bootstrap_file(self.root), started.bootstrap + "\n")
        return started

    # Waiting

    def _await_serving(self, running: _Running, deadline: Deadline) -> None:
        def serves() -> bool:
            if not self._alive(running):
                raise self._ended_early(running.process.pid)
            return self._serves(running)

        wait_until(serves, deadline, f"the local broker to serve at {running.bootstrap} (its log: {self._log})")

    def _await_gone(self, running: _Running, deadline: Deadline) -> None:
        what = f"the local broker to end (pid {running.process.pid})"
        wait_until(lambda: not self._alive(running) and is_free(running.port), deadline, what, interval_s=0.02)

    def _alive(self, running: _Running) -> bool:
        if self._child is not None:
            self._child.poll()  # reaps it once it has ended
        return running.process.alive()

    def _serves(self, running: _Running) -> bool:
        """Whether this very broker, known by its cluster id, answers."""
        if is_free(running.port):
            return False  # not listening yet; a client would only retry
        admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0, "error_cb": lambda _: None, **self._client})
        try:
            metadata = admin.list_topics(timeout=PROBE_S)
        except KafkaException:
            return False
        # After a kill it answers before its new session is registered; until then partitions have no leader.
        led = all(p.leader >= 0 for topic in metadata.topics.values() for p in topic.partitions.values())
        return (
            bool(metadata.brokers)
            and led
            and metadata.cluster_id == parse(self._formatted.read_text(encoding="utf-8"))["cluster.id"]
        )

    def _ended_early(self, pid: int) -> BrokerError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(lines[-15:])
        why = f" ({found})" if (found := self.fault()) is not None else ""
        words = f"the local broker (pid {pid}) ended during its start{why}; the end of {self._log}:\n{tail}"
        return _PortTaken(words) if any("Address already in use" in line for line in lines) else BrokerError(words)


class _PortTaken(BrokerError):
    """The broker ended because a port was bound by somebody else."""


def _write(file: Path, text: str) -> None:
    with told(CANNOT_WRITE, file.parent):
        write_whole(file, text)
