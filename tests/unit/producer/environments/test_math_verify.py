"""The math-verify environment. Its tests share one worker, since one that imports sympy takes seconds to start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from producer.environments.base import PromptRefused
from producer.environments.math_verify import MathVerify, prepare
from producer.environments.worker_pool import CallTimeout, WorkerPool
from tests.fakes.producer.episodes import make_completion, make_rollout_request, rolled_out


class TimedOut(WorkerPool):
    """Every call takes too long."""

    async def call(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        raise CallTimeout(f"no result within {timeout_s} s")


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def pool(runner: asyncio.Runner) -> Iterator[WorkerPool]:
    pool = WorkerPool(1, prepare)
    yield pool
    runner.run(pool.close())


def environment(pool: WorkerPool, timeout_s: float, **arguments: Any) -> MathVerify:
    made = MathVerify(timeout_s=timeout_s, **arguments)
    made.pool = pool
    return made


def test_values_are_compared(runner: asyncio.Runner, pool: WorkerPool) -> None:
    cases = [
        (r"so \boxed{\frac{1}{2}}", "0.5", 1.0),
        ("The answer is 72.", "72", 1.0),
        ("The answer is 71.", "72", 0.0),
        ("The answer is 1,234.", 1234, 1.0),
        (r"\boxed{x + 1}", "$1 + x$", 1.0),
        ("no idea", "72", 0.0),
        ("", "72", 0.0),
    ]
    task = environment(pool, 60)

    async def run() -> list[Any]:
        return await asyncio.gather(*(task.score("", text, answer, {}) for text, answer, _ in cases))

    assert runner.run(run()) == [reward for *_, reward in cases]


def test_an_answer_that_is_no_mathematics_is_refused(runner: asyncio.Runner, pool: WorkerPool) -> None:
    with pytest.raises(PromptRefused, match="answer ''"):
        runner.run(environment(pool, 60).score("", "12", "", {}))


def test_a_verification_that_does_not_end_may_have_a_score(runner: asyncio.Runner, pool: WorkerPool) -> None:
    task = environment(pool, 0.5, timeout_score=0.25)
    asked = make_rollout_request(answer=r"7^{7^{7^{7}}}", max_total_length=99)
    trajectory = runner.run(rolled_out(task, asked, make_completion(r"\boxed{9^{9^{9^{9}}}}")))
    assert trajectory.rewards == {"reward": 0.25}


def test_a_verification_that_does_not_end_is_a_failed_trajectory_otherwise(runner: asyncio.Runner) -> None:
    with pytest.raises(CallTimeout):
        runner.run(environment(TimedOut(1), 0.5).score("", "12", "12", {}))


@pytest.mark.parametrize("arguments", [{"timeout_s": 0}, {"workers": 0}])
def test_arguments_must_be_above_0(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        MathVerify(**arguments)
