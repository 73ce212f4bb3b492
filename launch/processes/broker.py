"""The broker, for as long as somebody here needs it.

A broker that was started on demand is stopped by its last user: a run, or a `weir` command. Users hold a shared lock on the file
`users` in the broker's folder. The system frees the lock when its holder ends; a run's processes inherit it, so that a broker
never goes before those who write to it. A broker that a person started (`weir broker start`) stays. One that was started on
demand and dies while a run uses it is started again by `launch/supervise/broker_monitor.py`.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from broker_config.locate import configured_servers
from broker_config.preflight import check_broker
from broker_config.processes import ProcessId
from schemas.config.kafka import KafkaConfig

START_S = 180.0  # the first start downloads the jars
STOP_S = 40.0
PREFLIGHT_S = 15.0


@dataclass(frozen=True, slots=True)
class BrokerUse:
    """A broker that answers.

    Args:
        lock: the file descriptor that keeps a local broker running.
        process: the local broker's.
        on_demand: it was started for its users, and is started again for them when it dies.
    """

    bootstrap: str
    lock: int | None = None
    process: ProcessId | None = None
    log: Path | None = None
    local: LocalBroker | None = None
    on_demand: bool = False

    @property
    def keep_open(self) -> tuple[int, ...]:
        """File descriptors that the processes of a run inherit, so that the broker stays as long as they live."""
        return () if self.lock is None else (self.lock,)


@contextmanager
def use_broker(kafka: KafkaConfig, say: Callable[[str], None]) -> Iterator[BrokerUse]:
    """The configured broker; else the local one, which is started if need be, and then stopped again unless others use it.

    Raises:
        ConfigError: the configured broker cannot be used, with the cause.
        BrokerError, DeadlineExceeded: the local broker does not start.
    """
    servers = configured_servers(kafka)
    if servers is not None:
        check_broker(kafka, servers, Deadline(PREFLIGHT_S))
        yield BrokerUse(servers)
        return
    broker = LocalBroker(say=say)
    lock = _hold(broker.root, Deadline(START_S))
    try:
        if broker.status().state == "stopped":
            _on_demand(broker.root).touch()
            say("starting the local broker")
        bootstrap = broker.start(Deadline(START_S))
        check_broker(kafka, bootstrap, Deadline(PREFLIGHT_S))
        pid = broker.pid
        process = ProcessId.of(pid) if pid is not None else None
        yield BrokerUse(bootstrap, lock, process, broker.status().log, broker, _on_demand(broker.root).exists())
    finally:
        os.close(lock)
        release(broker, Deadline(0))


def release(broker: LocalBroker, patience: Deadline) -> bool:
    """Stop the broker if it was started on demand and nobody uses it; wait for its users until `patience` ends.

    Returns whether nobody used it any more.
    """
    lock = _open(broker.root)
    try:
        while not _try(lock, fcntl.LOCK_EX):
            if patience.expired:
                return False
            time.sleep(0.1)
        if _on_demand(broker.root).exists():
            broker.stop(Deadline(STOP_S))
            _on_demand(broker.root).unlink(missing_ok=True)
        return True
    finally:
        os.close(lock)


def keep(broker: LocalBroker) -> None:
    """From now on the broker stays until somebody stops it."""
    _on_demand(broker.root).unlink(missing_ok=True)


def in_use(broker: LocalBroker) -> bool:
    """Whether a run or a command uses the broker now."""
    lock = _open(broker.root)
    try:
        return not _try(lock, fcntl.LOCK_EX)
    finally:
        os.close(lock)


class Keeper:
    """Holds `launch.processes.keeper`, which stops a local broker when this process is killed and cannot do it itself.

    When an exception leaves the block, a clean-up may have been cut short: the keeper then lives on and does the rest.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Keeper:
        return self

    def guard(self, broker: BrokerUse) -> None:
        """Start the keeper for this broker; one that is not local needs none."""
        if broker.lock is not None:
            command = [
                sys.executable,
                "-m",
                "launch.processes.keeper",
                "--parent",
                str(os.getpid()),
                "--patience",
                str(self._patience_s),
            ]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None and kind is None:
            self._process.kill()
            self._process.wait()


def _on_demand(root: Path) -> Path:
    return root / "on-demand"


def _open(root: Path) -> int:
    root.mkdir(parents=True, exist_ok=True)
    return os.open(root / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _hold(root: Path, deadline: Deadline) -> int:
    """A shared lock; waits while somebody stops the broker."""
    lock = _open(root)
    while not _try(lock, fcntl.LOCK_SH):
        if deadline.expired:
            os.close(lock)
            deadline.check("the local broker's last user to stop it")
        time.sleep(0.1)
    return lock


def _try(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
