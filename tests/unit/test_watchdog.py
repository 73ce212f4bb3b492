"""Stacks are written when a loop stands still, and only then."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

PROGRAM = """
import sys, time
from broker_config.watchdog import Watchdog
dog = Watchdog({limit})
dog.kick()
def standing_still():
    sys.stdin.read()
print("ready", flush=True)
standing_still()
"""


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
    told = [process.stderr.readline() for _ in range(3)]
    _, rest = process.communicate(timeout=20)
    assert "Timeout" in told[0] and "standing_still" in "".join(told) + rest
    assert process.returncode == 0, "the process goes on"


def test_a_person_can_ask_for_the_stacks() -> None:
    process = run(1000)
    process.send_signal(signal.SIGUSR1)
    _, told = process.communicate(timeout=20)
    assert "most recent call first" in told and 'File "<string>"' in told
    assert process.returncode == 0


def test_a_loop_that_turns_is_left_alone() -> None:
    program = (
        "import time\nfrom broker_config.watchdog import Watchdog\ndog = Watchdog(1.5)\n"
        "for _ in range(8):\n    dog.kick()\n    time.sleep(0.25)\ndog.stop()\ntime.sleep(1.7)\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began > 3, "longer than the limit"
