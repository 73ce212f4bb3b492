"""Requests to any engine: what a completion holds, many at once, refused ones, cancelled ones, frozen ones."""

from __future__ import annotations

import asyncio

import pytest

from producer.engine.protocol import Engine
from tests.fakes.producer.engine_oracle import (
    LENGTH,
    LONG,
    MARKS,
    SAMPLING,
    appeared,
    check,
    progressed,
)

pytestmark = MARKS


def test_a_completion_has_one_logprob_a_token_and_spans_over_all(engine: Engine) -> None:
    completion = asyncio.run(engine.generate("one", [1, 2, 3], SAMPLING))
    check(completion, SAMPLING, engine.version)
    assert all(0 <= token < 48 for token in completion.token_ids)


def test_many_requests_run_at_once_and_progress_counts_all_tokens(engine: Engine) -> None:
    async def main() -> None:
        before = engine.progress()[""]
        completions = await asyncio.gather(*(engine.generate(f"many-{n}", [1, 2, n % 48], SAMPLING) for n in range(80)))
        assert engine.progress() == {"": before + sum(len(c.token_ids) for c in completions)}
        for completion in completions:
            check(completion, SAMPLING, engine.version)
        assert len({tuple(c.token_ids) for c in completions}) > 70

    asyncio.run(main())


def test_a_prompt_that_does_not_fit_is_a_value_error_and_harms_nobody(engine: Engine) -> None:
    for prompt in ([], [1] * LENGTH, [48], [-1]):
        with pytest.raises(ValueError, match=r"prompt|token ids"):
            asyncio.run(engine.generate("bad", prompt, SAMPLING))
    check(asyncio.run(engine.generate("good", [1] * (LENGTH - 1), SAMPLING)), SAMPLING, engine.version)


def test_cancelling_the_task_aborts_the_request(engine: Engine) -> None:
    async def main() -> None:
        await engine.pause(drop_caches=False)
        task = asyncio.create_task(engine.generate("gone", [1, 2], LONG))
        await appeared(engine, "gone")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.resume()
        check(await engine.generate("gone", [1, 2], SAMPLING), SAMPLING, engine.version)
        assert set(engine.progress()) == {""}

    asyncio.run(main())


@pytest.mark.parametrize("drop_caches", [False, True])
def test_pause_freezes_running_requests_queues_new_ones_and_resume_goes_on(engine: Engine, drop_caches: bool) -> None:
    async def main() -> None:
        name = f"frozen-{drop_caches}-2"
        running = asyncio.create_task(engine.generate(name, [3, 4], LONG))
        await progressed(engine, 3, name)
        await engine.pause(drop_caches=drop_caches)
        before = engine.progress()
        new = asyncio.create_task(engine.generate("queued", [5], SAMPLING))
        await appeared(engine, "queued")
        await asyncio.sleep(0.05)  # the subject: a paused engine does nothing for a while
        assert engine.progress() == before | {"queued": 0}
        assert not running.done()
        await engine.resume()
        check(await running, LONG, engine.version)
        check(await new, SAMPLING, engine.version)

    asyncio.run(main())
