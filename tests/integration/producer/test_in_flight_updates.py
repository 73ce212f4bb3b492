"""Weights change under running requests of the real vLLM; every log-probability is computed again by transformers.

The engine is stopped between two chosen steps, so each test knows at which token the weights changed. At a stop a request with k
sampled tokens has the keys and values of its prompt and of k - 1 of them: the k-th is fed first thing afterwards. So tokens 0 to
k - 1 are of the old weights, and position prompt + k - 1 is the first that the new ones compute.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from producer.engine.protocol import Sampling
from producer.environments.base import Environment, Generate, Prompt, RolloutRequest, TrajectoryBuilder
from producer.rollout import Limits, roll_out
from schemas.config.dispatch import RefitConfig
from schemas.config.grpo import GenerationConfig
from schemas.config.model import ModelConfig
from schemas.config.producer import ProducerConfig
from schemas.errors import TransferError
from schemas.records.group import Kind, Span, Trajectory
from tests.fakes.producer.stopped_engine import EXACT, KEEP, RECOMPUTE, WAIT_S, Bench, Sampled, largest, prompt_of
from tests.fakes.producer.switched_model import SwitchedModel
from tests.support import eventually_in_loop

if TYPE_CHECKING:
    from producer.engine.vllm_engine import VllmEngine

pytestmark = [
    pytest.mark.timeout(300),
    # vLLM and transformers warn while they are imported.
    pytest.mark.filterwarnings("ignore"),
]

BLOCK = 128  # tokens of a cache block on CPUs
BLOCKS = 36
EMPTY = (0, 0, 0, BLOCKS - 1)  # vLLM keeps one block for itself
LENGTH = 4 * BLOCK
SEATS = 8  # requests that run at once
CHUNK = 256  # tokens of one step; longer prompts take several
APART = 1e-2
"""Least difference (the largest of a request's tokens) to what other weights, or a switch elsewhere, would give."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SwitchedModel:
    return SwitchedModel(tmp_path_factory.mktemp("switched"), LENGTH, RefitConfig().bucket_mib)


@pytest.fixture(scope="module")
def started(model: SwitchedModel) -> Iterator[VllmEngine]:
    from producer.engine.vllm_engine import VllmEngine

    engine = VllmEngine(
        ModelConfig(path=str(model.folder), dtype="float32", max_total_sequence_length=LENGTH),
        GenerationConfig(),
        ProducerConfig(
            vllm={"seed": 0, "max_num_seqs": SEATS, "max_num_batched_tokens": CHUNK, "num_gpu_blocks_override": BLOCKS}
        ),
        RefitConfig(),
    )
    yield engine
    asyncio.run(engine.close())


@pytest.fixture
def bench(started: VllmEngine, model: SwitchedModel) -> Iterator[Bench]:
    bench = Bench(started, model)
    yield bench
    assert bench.residue() == EMPTY


PROMPTS = {f"p{length}": prompt_of(length, 0) for length in (1, 7, 60, 127, 128, 129, 200, 300)}
"""Around the borders of a cache block, and one longer than a step."""


def test_the_oracle_in_parts_is_the_plain_model_and_feels_every_switch(model: SwitchedModel) -> None:
    tokens = prompt_of(150, 1)
    whole = model.logprobs(tokens, [(1, 150)])
    assert largest(model.logprobs(tokens, [(1, 40), (1, 41), (1, 150)]), whole) < EXACT
    switched = model.logprobs(tokens, [(1, 40), (2, 150)])
    assert switched[:40] == pytest.approx(whole[:40], abs=EXACT)
    assert largest(switched[40:], model.logprobs(tokens, [(2, 150)])[40:]) > APART
    assert largest(switched, model.logprobs(tokens, [(1, 41), (2, 150)])) > APART


@pytest.mark.parametrize("drop_caches", [KEEP, RECOMPUTE])
def test_tokens_before_the_switch_are_of_the_old_weights_and_those_after_it_of_the_new(bench: Bench, drop_caches: bool) -> None:
    async def main() -> None:
        await bench.refit(11)
        old = bench.version
        tasks = {name: bench.start(name, prompt, 60, 0.7 + 0.1 * n) for n, (name, prompt) in enumerate(PROMPTS.items())}
        at = await bench.stop_at(20, PROMPTS)
        await bench.refit(12, drop_caches)
        exact, apart, last_old, first_new = [], [], [], []
        for name, task in tasks.items():
            sampled, k = await task, at[name]
            assert 20 <= k < 60
            assert sampled.spans == (Span(old, 0, k), Span(old + 1, k, 60))
            exact.append(sampled.gap(11, end=k))
            mixed, fresh = sampled.gap(11, k, 12, start=k), sampled.gap(12, start=k)
            exact.append(fresh if drop_caches else mixed)
            apart.append(mixed if drop_caches else fresh)
            # One token off, either way, is another result.
            last_old.append(sampled.gap(12, start=k - 1, end=k))
            first_new.append(sampled.gap(11, start=k, end=k + 1))
            if not drop_caches:
                apart += [sampled.gap(11, k - 1, 12), sampled.gap(11, k + 1, 12)]
        assert max(exact) < EXACT
        assert min(apart) > APART
        assert min(statistics.median(last_old), statistics.median(first_new)) > APART
        print(f"exact {max(exact):.2g}, apart {min(apart):.2g}, by one {statistics.median(last_old + first_new):.2g}")

    asyncio.run(main())


def test_a_request_over_several_refits_has_a_span_each_and_its_cache_is_renewed_only_by_request(bench: Bench) -> None:
    async def main() -> None:
        await bench.refit(21)
        old = bench.version

        def has(tokens: int) -> Callable[[], bool]:
            return lambda: bench.engine.progress()["often"] == tokens

        stopped = await bench.stop_when(has(15))
        task = bench.start("often", prompt_of(140, 2), 90)
        for n, drop_caches in enumerate([KEEP, KEEP, RECOMPUTE, KEEP], start=1):
            await stopped
            await bench.engine.pause(drop_caches=drop_caches)
            await bench.load(21 + n)
            stopped = await bench.stop_when(has(15 * (n + 1)))
            await bench.engine.resume()
        await stopped
        await bench.engine.resume()
        sampled = await task
        ends = [15, 30, 45, 60, 90]
        assert sampled.spans == tuple(Span(old + n, end - (30 if end == 90 else 15), end) for n, end in enumerate(ends))
        gaps = sampled.gap(21, 15, 22, 30, 23, end=45), sampled.gap(24, 60, 25, start=45)
        print(f"exact {max(gaps):.2g}")
        assert max(gaps) < EXACT
        assert sampled.gap(21, 15, 22, 30, 23, 45, 24, 60, 25, start=45) > APART

    asyncio.run(main())


@pytest.mark.parametrize("drop_caches", [KEEP, RECOMPUTE])
def test_a_prompt_that_is_half_computed_at_the_switch(bench: Bench, drop_caches: bool) -> None:
    """All of its tokens are of the new weights; without recomputing, the first half of its context is not."""

    async def main() -> None:
        await bench.refit(31)
        prompt = prompt_of(400, 3)
        stopped = await bench.stop_when(lambda: bench.computed("half") > 0)
        task = bench.start("half", prompt, 30)
        await stopped
        computed = bench.computed("half")
        assert 0 < computed < len(prompt)
        await bench.refit(32, drop_caches)
        sampled = await task
        assert sampled.spans == (Span(bench.version, 0, 30),)
        mixed, fresh = sampled.gap(31, computed - (len(prompt) - 1), 32), sampled.gap(32)
        exact, apart = (fresh, mixed) if drop_caches else (mixed, fresh)
        print(f"exact {exact:.2g}, apart {apart:.2g}")
        assert exact < EXACT
        assert apart > APART

    asyncio.run(main())


@pytest.mark.parametrize("drop_caches", [KEEP, RECOMPUTE])
def test_requests_that_wait_during_the_refit_read_nothing_of_the_old_weights(bench: Bench, drop_caches: bool) -> None:
    """They share a prompt of whole blocks with requests that run; some waited before the pause, some came in it."""

    async def main() -> None:
        await bench.refit(41)
        shared = prompt_of(2 * BLOCK, 4)
        prompts = {f"w{n}": [*shared, n] for n in range(SEATS + 6)}
        running, early, late = list(prompts)[:SEATS], list(prompts)[SEATS : SEATS + 3], list(prompts)[SEATS + 3 :]
        tasks = {name: bench.start(name, prompts[name], 40) for name in running + early}
        at = await bench.stop_at(10, running)
        assert {at[name] for name in early} == {0}
        await bench.engine.pause(drop_caches=drop_caches)
        tasks |= {name: bench.start(name, prompts[name], 40) for name in late}
        await eventually_in_loop(lambda: bench.engine.progress().keys() >= set(late), WAIT_S, "the late requests to wait")
        await bench.load(42)
        await bench.engine.resume()
        gaps = {}
        for name, task in tasks.items():
            sampled, k = await task, at.get(name, 0)
            assert sampled.spans[-1] == Span(bench.version, k, 40)
            gaps[name] = sampled.gap(42, start=k) if drop_caches or not k else sampled.gap(41, k, 42, start=k)
        assert {name: gap for name, gap in gaps.items() if not gap < EXACT} == {}
        print(f"exact {max(gaps.values()):.2g}")
        # Among each other they share what the new weights have computed.
        assert Counter(bench.cached[name] for name in early + late)[2 * BLOCK] >= 5

    asyncio.run(main())


@pytest.mark.parametrize("drop_caches", [KEEP, RECOMPUTE])
@pytest.mark.parametrize("label", ["next version", "same version"])
def test_a_shared_prompt_is_computed_once_a_load_and_never_taken_from_older_weights(
    bench: Bench, drop_caches: bool, label: str
) -> None:
    """A version comes again, with other weights, when a resumed learner has trained it anew."""

    async def main() -> None:
        await bench.refit(51)
        prompt = prompt_of(2 * BLOCK + 44, 5)
        for seed in (51, 52, 53):
            if seed > 51:
                await bench.refit(seed, drop_caches, bench.version + (label == "next version"))
            first = await bench.start("first", prompt, 20)
            others = await asyncio.gather(*(bench.start(f"other{n}", prompt, 20) for n in range(SEATS)))
            assert bench.cached.pop("first") == 0
            assert bench.cached == {f"other{n}": 2 * BLOCK for n in range(SEATS)}
            assert max(each.gap(seed) for each in (first, *others)) < EXACT
            assert first.gap(seed - 1) > APART

    asyncio.run(main())


def test_a_full_cache_is_renewed_although_it_should_be_kept(bench: Bench) -> None:
    """The probe needs a few blocks; without them running requests give theirs back, and compute all with the new weights."""

    async def main() -> None:
        await bench.refit(61)
        prompts = {f"full{n}": prompt_of(395, 10 + n) for n in range(SEATS)}
        tasks = {name: bench.start(name, prompt, 40) for name, prompt in prompts.items()}
        at = await bench.stop_at(5, prompts)
        assert bench.free_blocks < 8
        await bench.refit(62, KEEP)
        for name, task in tasks.items():
            sampled, k = await task, at[name]
            assert [span.end for span in sampled.spans] == [k, 40]
            assert max(sampled.gap(61, end=k), sampled.gap(62, start=k)) < EXACT

    asyncio.run(main())


@pytest.mark.parametrize("drop_caches", [KEEP, RECOMPUTE])
def test_a_broken_transfer_leaves_running_requests_on_the_old_weights(bench: Bench, drop_caches: bool) -> None:
    async def main() -> None:
        await bench.refit(71)
        version = bench.version
        tasks = {name: bench.start(name, prompt, 60) for name, prompt in PROMPTS.items()}
        await bench.stop_at(20, PROMPTS)
        await bench.engine.pause(drop_caches=drop_caches)
        with bench.model.sending(72, version + 1, broken=True) as offer, pytest.raises(TransferError, match="broadcast"):
            await bench.engine.receive(offer)
        await bench.engine.resume()
        for task in tasks.values():
            sampled = await task
            assert sampled.spans == (Span(version, 0, 60),)
            assert sampled.gap(71) < EXACT

    asyncio.run(main())


class Relay(Environment):
    """Three turns of 40 tokens, and after each some of its own; the second turn begins when the test opens the gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.at_the_gate = 0

    async def rollout(self, request: RolloutRequest, generate: Generate) -> Trajectory:
        builder = TrajectoryBuilder(request)
        for turn in range(3):
            builder.add(await generate(builder.context, 40))
            if turn == 0:
                self.at_the_gate += 1
                await self.gate.wait()
            builder.add_environment(prompt_of(3 + turn + request.index, 7))
        return builder.finish(1.0)


class OneTurn(Environment):
    async def rollout(self, request: RolloutRequest, generate: Generate) -> Trajectory:
        builder = TrajectoryBuilder(request)
        builder.add(await generate(builder.context))
        return builder.finish(1.0)


def roll(
    bench: Bench, key: str, environment: Environment, prompt: list[int], count: int, kind: Kind = "rollout"
) -> asyncio.Task[tuple[Trajectory, ...]]:
    """A group, as a task."""
    return asyncio.create_task(
        roll_out(
            key=key,
            kind=kind,
            prompt=Prompt(row=0, ids=np.array(prompt, dtype="<u4"), text=""),
            count=count,
            environment=environment,
            engine=bench.engine,
            sampling=Sampling(200, 0.9, 1.0, None),
            tokenizer=None,  # type: ignore[arg-type]  # no environment here asks for one
            limits=Limits(max_total_length=LENGTH, max_retries=0, timeout_s=WAIT_S),
        )
    )


@pytest.mark.parametrize("drop_caches", [KEEP, RECOMPUTE])
def test_trajectories_of_several_turns_over_a_refit_between_turns_and_one_within_a_turn(bench: Bench, drop_caches: bool) -> None:
    async def main() -> None:
        await bench.refit(81)
        old, prompt = bench.version, prompt_of(BLOCK + 12, 8)
        relay = Relay()
        group = roll(bench, "v00000009/s0000/d0/a0", relay, prompt, 4)
        await eventually_in_loop(lambda: relay.at_the_gate == 4, WAIT_S, "four trajectories to come to their second turn")
        await bench.refit(82, drop_caches)
        second = [f"v00000009/s0000/d0/a0/t{n}/r0/g1" for n in range(4)]
        stopped = await bench.stop_when(lambda: min(bench.engine.progress().get(name, 0) for name in second) >= 12)
        relay.gate.set()
        await stopped
        at = bench.engine.progress()
        await bench.refit(83, drop_caches)
        exact, apart = [], []
        for index, t in enumerate(await group):
            k = at[second[index]]
            starts = 0, 40 + 3 + index, 40 + 3 + index + 40 + 4 + index
            assert t.spans == (
                Span(old, 0, 40),
                Span(old + 1, starts[1], starts[1] + k),
                Span(old + 2, starts[1] + k, starts[1] + 40),
                Span(old + 2, starts[2], starts[2] + 40),
            )
            assert t.mask.tolist() == [int(any(start <= i < start + 40 for start in starts)) for i in range(len(t.tokens))]
            assert np.array_equal(t.mask == 1, t.token_versions() >= 0)
            assert not t.logprobs[t.mask == 0].any()
            one, two, three = (turn(bench, prompt, t, start) for start in starts)
            # Only the request that ran has a cache to keep: the third turn is a new one.
            exact += [one.gap(81), two.gap(82, end=k), three.gap(83)]
            exact.append(two.gap(83, start=k) if drop_caches else two.gap(82, k, 83, start=k))
            apart += [one.gap(82), two.gap(81, end=k), three.gap(82), three.gap(82, -44, 83)]
            apart.append(two.gap(82, k, 83, start=k) if drop_caches else two.gap(83, start=k))
        print(f"exact {max(exact):.2g}, apart {min(apart):.2g}")
        assert max(exact) < EXACT
        assert min(apart) > APART

    asyncio.run(main())


def turn(bench: Bench, prompt: list[int], t: Trajectory, start: int) -> Sampled:
    """The trajectory's 40 tokens from `start` on, as one call."""
    before, own = t.tokens[:start].tolist(), slice(start, start + 40)
    return Sampled(bench.model, [*prompt, *before], t.tokens[own].tolist(), t.logprobs[own].tolist(), (), 0.9)


@pytest.mark.parametrize("drop_caches", [KEEP, RECOMPUTE])
@pytest.mark.parametrize("when", ["before the load", "during the load", "after the load"])
def test_groups_aborted_in_a_pause_leave_nothing_behind(bench: Bench, drop_caches: bool, when: str) -> None:
    """A validation and a rollout that run, and a rollout that waits; a request beside them crosses the refit."""

    async def main() -> None:
        await bench.refit(91)
        shared = prompt_of(BLOCK + 50, 9)
        doomed = [
            roll(bench, "v00000007/s0000/d0/a0", OneTurn(), shared, 3, "validation"),
            roll(bench, "v00000008/s0001/d0/a0", OneTurn(), shared, 3),
        ]
        task = bench.start("spared", shared, 190)
        await (await bench.stop_when(lambda: sum(tokens >= 8 for tokens in bench.engine.progress().values()) == 1 + 7))
        k = bench.engine.progress()["spared"]
        await bench.engine.pause(drop_caches=drop_caches)
        doomed.append(roll(bench, "v00000008/s0002/d0/a0", OneTurn(), shared, 3))
        await eventually_in_loop(lambda: len(bench.engine.progress()) == 1 + 10, WAIT_S, "ten requests in the engine")

        async def abort() -> None:
            for group in doomed:
                group.cancel()
            assert {type(end) for end in await asyncio.gather(*doomed, return_exceptions=True)} == {asyncio.CancelledError}

        if when == "before the load":
            await abort()
        with bench.model.sending(92, bench.version + 1) as offer:
            loading = asyncio.create_task(bench.engine.receive(offer))
            if when == "during the load":
                await asyncio.sleep(0)  # one turn of the loop: the engine's thread takes it up, and the aborts queue behind it
                await abort()
            await loading
        if when == "after the load":
            await abort()
        await eventually_in_loop(lambda: bench.engine.progress().keys() == {"", "spared"}, WAIT_S, "the aborts")
        assert len(bench.scheduler.requests) == 1
        await bench.engine.resume()
        spared = await task
        assert (spared.gap(92, start=k) if drop_caches else spared.gap(91, k, 92, start=k)) < EXACT
        assert bench.residue() == EMPTY
        again = await asyncio.gather(*(bench.start(f"again{n}", shared, 30) for n in range(SEATS)))
        assert max(each.gap(92) for each in again) < EXACT

    asyncio.run(main())
