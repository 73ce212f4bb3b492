"""How the producer's process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

HUNG_SCORE = """
import asyncio, sys, threading
from producer import __main__ as program
from producer.environments.single_turn import FunctionEnvironment

begun = threading.Event()

def score(prompt, completion, answer, metadata):
    begun.set()
    threading.Event().wait()

async def roll_out():
    task = asyncio.create_task(FunctionEnvironment(score, {})._call(score, "", "", None, {}))
    assert await asyncio.to_thread(begun.wait, 30)
    task.cancel()

def main():
    asyncio.run(roll_out())
    if sys.argv[1] == "crashed":
        raise RuntimeError("the loop broke")
    return 3

program.main = main
program.run()
"""


@pytest.mark.parametrize(("ending", "code"), [("returned", 3), ("crashed", 1)])
def test_a_score_function_that_never_returns_does_not_keep_the_process_alive(ending: str, code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", HUNG_SCORE, ending], capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert ("RuntimeError: the loop broke" in ended.stderr) is (ending == "crashed")
