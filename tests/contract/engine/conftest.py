"""The engines under test. vLLM takes half a minute to start: there is one in a session, which all modules here share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from producer.engine.protocol import Engine, EngineDead
from producer.engine.scripted_engine import ScriptedEngine
from tests.fakes.producer.engine_oracle import SAMPLING, Oracle, settings


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("tiny-qwen3"))


@pytest.fixture(scope="session")
def vllm(oracle: Oracle) -> Iterator[Engine]:
    from producer.engine.vllm_engine import VllmEngine

    engine = VllmEngine(*settings(oracle))
    yield engine
    asyncio.run(engine.close())
    with pytest.raises(EngineDead, match="the engine was closed"):
        asyncio.run(engine.generate("late", [1], SAMPLING))


@pytest.fixture(params=["scripted", "vllm"])
def engine(request: pytest.FixtureRequest, oracle: Oracle) -> Engine:
    if request.param == "vllm":
        real: Engine = request.getfixturevalue("vllm")
        return real
    return ScriptedEngine(*settings(oracle, seconds_per_token=0.002, tokens=100))
