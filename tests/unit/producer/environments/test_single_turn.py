from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from producer.environments.single_turn import THREADS, FunctionEnvironment
from schemas.records.group import Trajectory
from tests.fakes.producer.episodes import make_completion, make_rollout_request, rolled_out, trajectory_of


def plain(prompt: str, completion: str, answer: Any, metadata: Any, bonus: float = 0.0) -> float:
    assert threading.current_thread() is not threading.main_thread()
    return float(completion == answer) + bonus


async def asynchronous(prompt: str, completion: str, answer: Any, metadata: Any) -> dict[str, float]:
    await asyncio.sleep(0)
    return {"right": float(completion == answer), "level": metadata["level"]}


def test_a_plain_function_runs_in_a_thread_with_its_arguments() -> None:
    environment = FunctionEnvironment(plain, {"bonus": 0.5})
    assert trajectory_of(environment, make_rollout_request(answer="ok"), make_completion("ok")).rewards == {"reward": 1.5}


def test_an_async_function_is_awaited() -> None:
    environment = FunctionEnvironment(asynchronous, {})
    t = trajectory_of(environment, make_rollout_request(answer="ok", metadata={"level": 2.0}), make_completion("no"))
    assert t.rewards == {"right": 0.0, "level": 2.0}


def test_what_a_function_raises_reaches_the_rollout() -> None:
    def broken(prompt: str, completion: str, answer: Any, metadata: Any) -> float:
        raise KeyError("level")

    with pytest.raises(KeyError):
        trajectory_of(FunctionEnvironment(broken, {}), make_rollout_request(), make_completion("ok"))


def test_a_stop_iteration_is_an_error_like_any_other() -> None:
    def exhausted(prompt: str, completion: str, answer: Any, metadata: Any) -> float:
        return next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        trajectory_of(FunctionEnvironment(exhausted, {}), make_rollout_request(), make_completion("ok"))


def test_blocked_threads_hold_up_neither_the_loop_nor_the_calls_that_still_fit() -> None:
    gate = threading.Event()

    def score(prompt: str, completion: str, answer: Any, metadata: Any) -> float:
        return float(answer == "free" or gate.wait())

    async def run() -> None:
        environment = FunctionEnvironment(score, {})

        def call(answer: str) -> asyncio.Task[Trajectory]:
            return asyncio.create_task(rolled_out(environment, make_rollout_request(answer=answer), make_completion("ok")))

        stuck = [call("blocked") for _ in range(THREADS - 1)]
        assert (await asyncio.wait_for(call("free"), 10)).reward == 1.0
        stuck.append(call("blocked"))
        waiting = call("free")
        _, pending = await asyncio.wait([waiting], timeout=0.1)
        assert pending == {waiting}
        gate.set()
        assert all(t.reward == 1.0 for t in await asyncio.wait_for(asyncio.gather(waiting, *stuck), 10))
        await environment.close()

    asyncio.run(run())
