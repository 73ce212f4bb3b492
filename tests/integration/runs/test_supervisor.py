"""The supervisor over real processes: whoever dies, of whatever, nothing is left and the cause is reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas.records.control import Stop
from tests.support import eventually
from tests.paths import ROOT

MARK = "SUPERVISED_BY_TEST"

WAIT = "import time; time.sleep(300)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
# Like torchrun: its worker has a session of its own, and it does not end when its parent does.
WITH_WORKER = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {DEAF!r}], start_new_session=True); {WAIT}"
CRASH = "raise RuntimeError('no weights today')"


class Supervised:
    """One supervisor process and what it leaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, learner: str, *producers: str, stop_timeout: float = 10, start_timeout: float = 60, **restart: float) -> None:
        command = [sys.executable, "-m", "tests.fakes.launch.supervised", str(self.folder), str(stop_timeout), learner, *producers]
        env = {**os.environ, MARK: str(self.folder), "START_TIMEOUT": str(start_timeout), "RESTART": json.dumps(restart)}
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)

    def joined(self, *producers: str) -> None:
        """All of them are members of a run that has been claimed and has a checkpoint; the supervisor has seen it."""
        (self.folder / "joined").write_text(" ".join(producers))
        (self.folder / "saved").touch()
        (self.folder / "claims").write_text("1")
        shown = self.folder / "shown"
        for name in producers:
            eventually(partial(_holds, shown, f"{name}-1 serving"), 20, f"{name} to be seen")

    def outcome(self, seconds: float = 40) -> dict[str, Any]:
        assert self.process is not None
        code = self.process.wait(seconds)
        outcome: dict[str, Any] = json.loads((self.folder / "outcome.json").read_text())
        assert outcome["code"] == code
        return outcome

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def children(self, count: int) -> list[psutil.Process]:
        """Processes that run the made-up code, once there are so many."""
        return eventually(lambda: found if len(found := self.running()) == count else None, 20, f"{count} processes")

    def left(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def running(self) -> list[psutil.Process]:
        return [process for process in self.left() if process.cmdline()[1:2] == ["-c"]]


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    run = Supervised(tmp_path)
    yield run
    left = run.left()
    for process in left:
        process.kill()
    if run.process is not None:
        run.process.wait(10)
    assert left == []


def test_a_finished_learner_ends_the_run_and_its_producers(supervised: Supervised) -> None:
    supervised.start("pass", "pass", WITH_WORKER, stop_timeout=1)
    assert supervised.outcome()["code"] == 0


def test_a_crashed_producer_ends_the_run_and_its_log_shows_why(supervised: Supervised) -> None:
    supervised.start(WITH_WORKER, CRASH)
    outcome = supervised.outcome()
    assert (outcome["code"], outcome["blame"]) == (1, "producer-0")
    assert "no weights today" in (supervised.folder / "producer-0.log").read_text()


def test_a_learner_killed_from_outside_ends_the_run(supervised: Supervised) -> None:
    supervised.start(WAIT, WAIT)
    children = supervised.children(2)
    learner = next(p for p in children if Path(_log_of(p)).name == "learner-0.log")
    learner.kill()
    outcome = supervised.outcome()
    assert "SIGKILL" in outcome["cause"] and outcome["blame"] == "learner-0"


def test_the_stop_on_control_is_the_cause(supervised: Supervised) -> None:
    stop = Stop(reason="no producer for 300 s", version=3, resumable=True)
    (supervised.folder / "control.json").write_text(stop.model_dump_json())
    supervised.start("import sys; sys.exit(1)", "pass")
    outcome = supervised.outcome()
    assert outcome["code"] == 1
    assert "no producer for 300 s" in outcome["cause"]


def test_a_brokers_death_ends_the_run_when_it_may_not_be_started_again(supervised: Supervised) -> None:
    supervised.start(WAIT, WAIT, max_broker_restarts=0)
    supervised.children(2)
    (supervised.folder / "broker_gone").touch()
    outcome = supervised.outcome()
    assert (outcome["code"], outcome["cause"]) == (1, "the broker has ended")


def test_what_dies_later_is_started_again_and_its_log_continues(supervised: Supervised) -> None:
    report = f"import os; print('resumed' if os.environ.get('RESUMED') else 'anew', flush=True); {WAIT}"
    supervised.start(report, report, WAIT, backoff_s=0.2)
    before = {p.pid for p in supervised.children(3)}
    supervised.joined("producer-0", "producer-1")
    (supervised.folder / "broker_gone").touch()
    for process in supervised.children(3):
        if Path(_log_of(process)).name != "producer-1.log":
            process.kill()
    shown = supervised.folder / "shown"
    eventually(lambda: "the broker is back" in shown.read_text(), 20, "the broker to be started again")
    after = eventually(
        lambda: found if len(found := supervised.running()) == 3 and len({p.pid for p in found} - before) == 2 else None,
        20,
        "learner and producer to be started again",
    )
    logs = {Path(_log_of(p)).name: (supervised.folder / Path(_log_of(p)).name) for p in after}
    for name, words in (("learner-0.log", ["anew", "resumed"]), ("producer-0.log", ["anew", "anew"])):
        eventually(partial(_has_just, logs[name], words), 20, f"{name} to hold both")
    supervised.send(signal.SIGINT)
    outcome = supervised.outcome()
    assert outcome["restarts"] == {"learner-0": 1, "producer-0": 1, "broker": 1}
    assert "producer-0 died (signal SIGKILL); it will be started again" in shown.read_text()


def test_a_learner_that_gives_way_to_another_one_is_not_started_again(supervised: Supervised) -> None:
    supervised.start(WAIT, WAIT, backoff_s=300, max_backoff_s=300)
    learner = next(p for p in supervised.children(2) if Path(_log_of(p)).name == "learner-0.log")
    supervised.joined("producer-0")
    learner.kill()
    eventually(lambda: "started again in 300 s" in (supervised.folder / "shown").read_text(), 20, "its death to be seen")
    (supervised.folder / "claims").write_text("2")
    assert "another learner has taken the run over" in supervised.outcome()["cause"]


def test_an_interrupt_during_the_pause_before_a_start_ends_the_run(supervised: Supervised) -> None:
    supervised.start(WAIT, WAIT, backoff_s=300, max_backoff_s=300)
    supervised.children(2)
    supervised.joined("producer-0")
    for process in supervised.children(2):
        process.kill()
    eventually(lambda: (supervised.folder / "shown").read_text().count("started again in 300 s") == 2, 20, "both deaths")
    supervised.send(signal.SIGINT)
    outcome = supervised.outcome(15)
    assert (outcome["code"], outcome["restarts"]) == (130, {})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_everything_in_order(supervised: Supervised, number: signal.Signals) -> None:
    supervised.start(WAIT, WAIT)
    supervised.children(2)
    supervised.send(number)
    outcome = supervised.outcome()
    assert (outcome["code"], outcome["cause"]) == (130, f"interrupted by {number.name}")


def test_who_does_not_listen_is_killed_after_the_stop_timeout(supervised: Supervised) -> None:
    supervised.start(DEAF, DEAF, stop_timeout=1)
    _deaf(supervised, "learner-0", "producer-0")
    supervised.send(signal.SIGINT)
    assert supervised.outcome()["code"] == 130


def test_a_second_interrupt_kills_at_once(supervised: Supervised) -> None:
    supervised.start(DEAF, WITH_WORKER, stop_timeout=300)
    _deaf(supervised, "learner-0", "producer-0")
    supervised.send(signal.SIGINT)
    supervised.send(signal.SIGTERM)
    assert supervised.outcome(15)["code"] == 130


def test_a_learner_that_never_claims_is_ended(supervised: Supervised) -> None:
    supervised.start(WAIT, WAIT, start_timeout=2)
    assert "did not claim" in supervised.outcome()["cause"]


def test_a_killed_supervisor_leaves_nothing_behind(supervised: Supervised) -> None:
    supervised.start(WITH_WORKER, WAIT, stop_timeout=1)
    supervised.children(3)
    supervised.send(signal.SIGKILL)
    eventually(lambda: not supervised.left(), 25, "all processes of the run to end")


def test_a_killed_guard_leaves_nothing_behind(supervised: Supervised) -> None:
    supervised.start(WITH_WORKER, WAIT, stop_timeout=1)
    supervised.children(3)
    guard = next(p for p in supervised.left() if "launch.processes.guard" in p.cmdline() and WITH_WORKER in p.cmdline())
    guard.kill()
    assert "SIGKILL" in supervised.outcome()["cause"]


def _deaf(supervised: Supervised, *names: str) -> None:
    """Wait until the processes ignore SIGTERM."""
    for name in names:
        eventually(partial(_holds, supervised.folder / f"{name}.log", "deaf"), 20, f"{name} to start")


def _holds(file: Path, words: str) -> bool:
    return file.exists() and words in file.read_text()


def _has_just(log: Path, words: list[str]) -> bool:
    return _words(log) == words


def _words(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line and not line.startswith("---")]


def _log_of(process: psutil.Process) -> str:
    return os.readlink(f"/proc/{process.pid}/fd/1")
