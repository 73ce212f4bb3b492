"""Mathematical equality of the completion's answer and the row's, by the math-verify library.

Verification runs in worker processes: sympy may think for ever about what a policy writes (`9**9**9` holds the interpreter's lock
while it does), and a process can be killed. A worker is started at the first use, and again after it was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from producer.environments.base import PromptRefused, Score
from producer.environments.single_turn import SingleTurn

_START_S = 60.0  # a worker imports sympy first
_LINE_LIMIT = 1 << 26


class VerificationFailed(Exception):
    """The worker could not say whether the answer is right."""


class _Worker:
    """One `math_worker` process and the line protocol with it."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The worker's answer. On a timeout, a death or a cancellation the process is killed; the next call starts another.

        Raises:
            TimeoutError: no answer within `timeout_s`; VerificationFailed: the worker died.
        """
        done = False
        try:
            process = await self._started()
            reply = await self._exchange(process, json.dumps(question), timeout_s)
            done = True
            return reply
        finally:
            if not done:
                await self.stop()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "producer.environments.math_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            await self._exchange(self._process, '"ready"', _START_S)
        return self._process

    async def _exchange(self, process: asyncio.subprocess.Process, line: str, timeout_s: float) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
            answer = await asyncio.wait_for(process.stdout.readline(), timeout_s)
        except ConnectionError as error:
            raise VerificationFailed(f"the verifier's process is gone ({error})") from error
        if not answer:
            raise VerificationFailed(f"the verifier's process died with exit code {await process.wait()}")
        reply = json.loads(answer)
        assert isinstance(reply, dict)
        return reply

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()


class MathVerify(SingleTurn):
    """Reward: 1 if the completion's last formula or number equals the answer, else 0.

    timeout_s: of one verification; timeout_score: the reward when it is over, null makes it a failed trajectory;
    workers: processes that verify.
    """

    needs_answer = True
    libraries = ("math-verify", "latex2sympy2_extended", "sympy")

    def __init__(self, timeout_s: float = 5.0, timeout_score: float | None = None, workers: int = 1) -> None:
        super().__init__()
        if timeout_s <= 0 or workers < 1:
            raise ValueError(f"timeout_s={timeout_s}, workers={workers}: both must be above 0")
        self._timeout_s = timeout_s
        self._timeout_score = timeout_score
        self._workers = [_Worker() for _ in range(workers)]
        self._idle: asyncio.LifoQueue[_Worker] | None = None

    async def score(self, prompt: str, completion: str, answer: Any, metadata: Mapping[str, Any]) -> Score:
        if self._idle is None:  # made here: a queue belongs to the loop that it is first used on
            self._idle = asyncio.LifoQueue()
            for worker in self._workers:
                self._idle.put_nowait(worker)
        worker = await self._idle.get()
        try:
            reply = await worker.ask({"answer": str(answer), "completion": completion}, self._timeout_s)
        except TimeoutError:
            if self._timeout_score is None:
                raise VerificationFailed(f"no result within {self._timeout_s} s") from None
            return float(self._timeout_score)
        finally:
            self._idle.put_nowait(worker)
        if "refused" in reply:
            raise PromptRefused(f"answer {answer!r}: {reply['refused']}")
        if "error" in reply:
            raise VerificationFailed(str(reply["error"]))
        return float(reply["score"])

    async def close(self) -> None:
        for worker in self._workers:
            await worker.stop()
