"""The folder of a local broker: everything that it keeps on disk.

    data/               Kafka's log; absent or whole, since it appears by one rename
    server.properties   the settings of the last start
    log4j2.properties   what the broker logs
    broker.json         the process that was started last, and its ports
    bootstrap           `host:port` alone, for shell scripts
    broker.log          the log of the last start; broker.log.1 of the one before
    lock                held by the process that starts or stops the broker

Invariant: a process that dies while it writes a file leaves the former one.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from broker_config.cache import kafka_cache
from broker_config.deadline import Deadline
from broker_config.local import broker_log
from broker_config.local.server_properties import parse
from broker_config.processes import ProcessId, file_lock
from schemas.disk import file_errors, room, write_whole
from schemas.errors import DeadlineExceeded

MAIN = "kafka.Kafka"
CANNOT_WRITE = "the local broker's folder cannot be written"


def default_root() -> Path:
    """The folder of the broker that is used when no other one is configured."""
    return kafka_cache() / "broker"


@dataclass(frozen=True, slots=True)
class Instance:
    """A process that runs a broker, or ran one, and its ports."""

    process: ProcessId
    port: int
    controller_port: int

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerFolder:
    """Paths and files below `root`. Writing raises `FileError`, with the room that is left."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def properties_file(self) -> Path:
        return self.root / "server.properties"

    @property
    def log4j2_file(self) -> Path:
        return self.root / "log4j2.properties"

    @property
    def bootstrap_file(self) -> Path:
        return self.root / "bootstrap"

    @property
    def log_file(self) -> Path:
        return self.root / "broker.log"

    @property
    def _instance(self) -> Path:
        return self.root / "broker.json"

    @property
    def _meta(self) -> Path:
        """Kafka writes it last when it formats a data folder."""
        return self.data / "meta.properties"

    @property
    def formatted(self) -> bool:
        return self._meta.is_file()

    @property
    def command_end(self) -> tuple[str, str]:
        """The last words of the command line of a broker on this folder, and of no other process."""
        return MAIN, str(self.properties_file)

    def make(self) -> None:
        with file_errors(CANNOT_WRITE, self.root):
            self.root.mkdir(parents=True, exist_ok=True)

    def write(self, file: Path, text: str) -> None:
        with file_errors(CANNOT_WRITE, file.parent):
            write_whole(file, text)

    def lock(self, deadline: Deadline) -> AbstractContextManager[None]:
        return file_lock(self.root / "lock", deadline, "another start or stop of the local broker")

    def locked(self) -> bool:
        """Whether a process starts or stops the broker now."""
        try:
            with self.lock(Deadline(0)):
                return False
        except DeadlineExceeded:
            return True

    def last_instance(self) -> Instance | None:
        """The process that was started last, whether or not it lives. None if none was, or its record cannot be read."""
        try:
            record = json.loads(self._instance.read_text(encoding="utf-8"))
            return Instance(ProcessId(record["pid"], record["started"]), record["port"], record["controller_port"])
        except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
            return None

    def record(self, instance: Instance) -> None:
        """Write down which process was started."""
        record = {
            "pid": instance.process.pid,
            "started": instance.process.started,
            "port": instance.port,
            "controller_port": instance.controller_port,
        }
        self.write(self._instance, json.dumps(record) + "\n")
        self.write(self.bootstrap_file, instance.bootstrap + "\n")

    def cluster_id(self) -> str:
        """The id that the broker on this folder answers with."""
        return parse(self._meta.read_text(encoding="utf-8"))["cluster.id"]

    def begin_log(self) -> None:
        """An empty log; the former one is kept beside it."""
        with file_errors(CANNOT_WRITE, self.root):
            if self.log_file.exists():
                os.replace(self.log_file, self.root / "broker.log.1")
            self.log_file.touch()

    def log_lines(self) -> list[str]:
        return self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()

    def fault(self) -> str | None:
        """Why the broker that ran last failed, and the room that is left. None after a kill, or if nothing failed."""
        try:
            found = broker_log.fault(self.log_lines())
        except OSError:
            return None  # never started, or its disk is broken
        return None if found is None else f"{found}; {room(self.root)}"
