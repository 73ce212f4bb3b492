"""Fixtures of all tests: the shared broker, brokers of one's own, run ids, and the check that nothing is left running."""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from broker_config.deadline import Deadline
from broker_config.local.broker import LocalBroker
from tests.brokers import Broker, any_broker
from tests.support import new_id

SESSION_VARIABLE = "WEIR_TEST_SESSION"
STOP_S = 60.0

# A loaded machine is no failure; how long tests may take is pytest's matter.
settings.register_profile("weir", deadline=None)
settings.load_profile("weir")

_broker_kind = pytest.StashKey[str]()


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """All processes that the tests start, also detached ones, inherit a mark; at the end none that has it may live."""
    mark = uuid.uuid4().hex
    os.environ[SESSION_VARIABLE] = mark
    yield
    left = _left_running(mark)
    if left:
        _, left = psutil.wait_procs(left, timeout=5)
    if left:
        told = [f"{p.pid}: {' '.join(_command(p))[:200]}" for p in left]
        for process in left:
            process.send_signal(signal.SIGKILL)
        pytest.fail("processes were left running (ended now):\n" + "\n".join(told))


def _left_running(mark: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            marked = process.pid != os.getpid() and process.environ().get(SESSION_VARIABLE) == mark
        except psutil.Error:
            continue
        # multiprocessing's own helper ends with this process.
        if marked and not any("resource_tracker" in word for word in _command(process)):
            found.append(process)
    return found


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The real broker that the tests share; each test has a run id of its own."""
    folder = tmp_path_factory.mktemp("broker")
    with any_broker(folder) as found:
        request.config.stash[_broker_kind] = f"{found.bootstrap} ({found.kind})"
        yield found
    shutil.rmtree(folder / "data", ignore_errors=True)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., LocalBroker]]:
    """Makes local brokers that a test may kill: `own_broker()`, `own_broker("second", port=...)`. Not started yet."""
    made: list[LocalBroker] = []

    def make(name: str = "broker", **options: object) -> LocalBroker:
        made.append(LocalBroker(tmp_path / name, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for local in made:
        local.stop(Deadline(STOP_S))
        shutil.rmtree(local.root / "data", ignore_errors=True)


@pytest.fixture
def run_id() -> str:
    """A run id that no other test has."""
    return new_id()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    kind = config.stash.get(_broker_kind, None)
    if kind is not None:
        terminalreporter.write_line(f"broker: {kind}")
