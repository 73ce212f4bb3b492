"""What the scripted engine promises beyond other engines: the same tokens each time, and faults where they are scripted."""

from __future__ import annotations

import asyncio

import pytest

from producer.engine.protocol import EngineDead
from producer.engine.scripted_engine import ScriptedEngine
from tests.fakes.producer.engine_oracle import (
    MARKS,
    SAMPLING,
    Oracle,
    appeared,
    check,
    settings,
)

pytestmark = MARKS


def test_scripted_tokens_depend_on_prompt_and_request_id_alone(oracle: Oracle) -> None:
    async def main() -> None:
        one, other = (ScriptedEngine(*settings(oracle)) for _ in range(2))
        first = await one.generate("a", [1, 2], SAMPLING)
        await other.generate("b", [3], SAMPLING)
        assert await other.generate("a", [1, 2], SAMPLING) == first
        assert await other.generate("a2", [1, 2], SAMPLING) != first
        assert await other.generate("a", [2, 1], SAMPLING) != first

    asyncio.run(main())


def test_scripted_faults_happen_where_they_are_scripted(oracle: Oracle) -> None:
    async def main() -> None:
        engine = ScriptedEngine(*settings(oracle, fail_on=[0], hang_on=[1], die_on=[3]))
        with pytest.raises(RuntimeError, match="scripted failure of zero"):
            await engine.generate("zero", [1], SAMPLING)
        hanging = asyncio.create_task(engine.generate("one", [1], SAMPLING))
        await appeared(engine, "one")
        check(await engine.generate("two", [1], SAMPLING), SAMPLING, -1)
        assert not hanging.done()
        for task in (engine.generate("three", [1], SAMPLING), hanging, engine.generate("four", [1], SAMPLING)):
            with pytest.raises(EngineDead, match="scripted death"):
                await task

    asyncio.run(main())
