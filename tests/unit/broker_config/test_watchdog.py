"""Stacks are written when a loop stands still, and only then."""

from __future__ import annotations

import signal
import subprocess
import sys

from broker_config.watchdog import KICK_S, STDERR, Watchdog
from tests.fakes.clock import Clock

PROGRAM = """
import sys
from broker_config.watchdog import Watchdog
dog = Watchdog({limit})
dog.kick()
def standing_still():
    sys.stdin.read()
print("ready", flush=True)
standing_still()
"""


class Stacks:
    """In place of `faulthandler`: its timer, and how often it was set."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.armed: list[float] = []
        self.timer: float | None = None

    def register(self, signum: int, file: int) -> None:
        assert file == STDERR
        self.signals.append(signum)

    def dump_traceback_later(self, timeout: float, *, file: int) -> None:
        assert file == STDERR
        self.timer = timeout
        self.armed.append(timeout)

    def cancel_dump_traceback_later(self) -> None:
        self.timer = None


def run(limit: float) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(limit=limit)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_a_loop_that_stands_still_shows_where() -> None:
    process = run(0.05)
    assert process.stderr is not None
    shown = [process.stderr.readline() for _ in range(3)]
    _, rest = process.communicate(timeout=20)
    assert "Timeout" in shown[0] and "standing_still" in "".join(shown) + rest
    assert process.returncode == 0, "the process continues"


def test_a_person_can_ask_for_the_stacks() -> None:
    process = run(1000)
    process.send_signal(signal.SIGUSR1)
    _, shown = process.communicate(timeout=20)
    assert "most recent call first" in shown and 'File "<string>"' in shown
    assert process.returncode == 0


def test_a_loop_that_turns_sets_the_timer_anew_before_it_runs_out() -> None:
    clock, stacks = Clock(), Stacks()
    dog = Watchdog(1.5, clock, stacks)
    assert stacks.signals == [signal.SIGUSR1]
    assert stacks.timer is None, "not armed before the first turn"
    end_of_timer = clock.now + 1.5
    for _ in range(20):
        assert clock.now < end_of_timer, "a turn comes before the timer runs out"
        armed = len(stacks.armed)
        dog.kick()
        if len(stacks.armed) > armed:
            end_of_timer = clock.now + stacks.armed[-1]
        clock.now += 0.25
    assert stacks.armed == [1.5] * 5, "once every KICK_S"


def test_turns_that_follow_each_other_fast_set_the_timer_once() -> None:
    clock, stacks = Clock(), Stacks()
    dog = Watchdog(60, clock, stacks)
    for _ in range(10):
        dog.kick()
        clock.now += KICK_S / 20
    assert stacks.armed == [60]


def test_a_loop_that_has_ended_is_not_watched() -> None:
    clock, stacks = Clock(), Stacks()
    dog = Watchdog(60, clock, stacks)
    dog.kick()
    dog.stop()
    assert stacks.timer is None
