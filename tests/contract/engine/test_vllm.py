"""What vLLM promises beyond other engines: its log-probabilities are transformers' on the same weights."""

from __future__ import annotations

import asyncio

import pytest

from producer.engine.protocol import Engine, Sampling
from schemas.errors import TransferError
from tests.fakes.producer.engine_oracle import (
    MARKS,
    Oracle,
    progressed,
    refit,
    sending,
    serves,
)

pytestmark = MARKS


def test_vllm_logprobs_are_those_of_the_distribution_sampled_from(vllm: Engine, oracle: Oracle) -> None:
    async def main() -> None:
        await refit(vllm, oracle, seed=61)
        for sampling in (Sampling(24, 1.0, 1.0, None), Sampling(24, 0.7, 1.0, None), Sampling(24, 1.3, 1.0, 5)):
            completion = await vllm.generate("sampled", [1, 2, 3], sampling)
            tokens = [1, 2, 3, *completion.token_ids]
            expected = oracle.logprobs(oracle.weights(61), tokens, sampling.temperature, sampling.top_k)[2:]
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)

    asyncio.run(main())


def test_vllm_trajectory_over_a_refit_is_of_old_weights_before_and_new_ones_after(vllm: Engine, oracle: Oracle) -> None:
    """Long enough for whole cache blocks: a stale one would show."""

    async def main() -> None:
        await refit(vllm, oracle, seed=71)
        prompt = [n % 48 for n in range(150)]
        long = Sampling(100, 1.0, 1.0, None)
        task = asyncio.create_task(vllm.generate("over", prompt, long))
        await progressed(vllm, 10, "over")
        await refit(vllm, oracle, seed=72, drop_caches=True)
        completion = await task
        switch = completion.spans[0].end
        tokens = [*prompt, *completion.token_ids]
        old = oracle.logprobs(oracle.weights(71), tokens)[len(prompt) - 1 :]
        new = oracle.logprobs(oracle.weights(72), tokens)[len(prompt) - 1 :]
        assert completion.logprobs[:switch] == pytest.approx(old[:switch], abs=1e-4)
        assert completion.logprobs[switch:] == pytest.approx(new[switch:], abs=1e-4)
        assert max(abs(a - b) for a, b in zip(old, new, strict=True)) > 1
        again = await vllm.generate("prefix", prompt, long)
        expected = oracle.logprobs(oracle.weights(72), [*prompt, *again.token_ids])[len(prompt) - 1 :]
        assert again.logprobs == pytest.approx(expected, abs=1e-4)

    asyncio.run(main())


def test_vllm_keeps_running_requests_whole_while_the_probe_is_scored(vllm: Engine, oracle: Oracle) -> None:
    """Same weights again, caches kept: were a frozen request moved or its cache taken, its log-probabilities would differ."""

    async def main() -> None:
        await refit(vllm, oracle, seed=81)
        prompts = {f"held-{n}": [n, 1, 2] for n in range(40)}
        long = Sampling(60, 1.0, 1.0, None)
        tasks = [asyncio.create_task(vllm.generate(name, prompt, long)) for name, prompt in prompts.items()]
        await progressed(vllm, 5, "held-0")
        await refit(vllm, oracle, seed=81, drop_caches=False)
        for prompt, completion in zip(prompts.values(), await asyncio.gather(*tasks), strict=True):
            expected = oracle.logprobs(oracle.weights(81), [*prompt, *completion.token_ids])[2:]
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)

    asyncio.run(main())


def test_vllm_refuses_a_probe_of_another_length_before_it_loads(vllm: Engine, oracle: Oracle) -> None:
    async def main() -> None:
        await refit(vllm, oracle, seed=91)
        version = vllm.version
        await vllm.pause(drop_caches=True)
        with (
            sending(oracle, oracle.weights(92), version + 1, probe=[-1.0]) as (offered, _),
            pytest.raises(TransferError, match="probe"),
        ):
            await vllm.receive(offered)
        await vllm.resume()
        await serves(vllm, oracle, 91, version)

    asyncio.run(main())
