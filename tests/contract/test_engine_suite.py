"""What every engine promises, held against the scripted one and against vLLM on a tiny model.

Weights really travel: a sender on another thread or in another process, gloo between them. Log-probabilities of vLLM are
compared with transformers' on the same weights.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from producer.engine.protocol import Completion, Ending, Engine, EngineDead, Loaded, Sampling, TransferOffer
from producer.engine.scripted_engine import ScriptedEngine
from schemas.config.dispatch import RefitConfig
from schemas.config.grpo import GenerationConfig
from schemas.config.model import ModelConfig
from schemas.config.producer import ProducerConfig
from schemas.errors import TransferError
from schemas.weights.plan import WeightPlan, make_plan, tensor_index
from schemas.weights.probe import probe_tokens
from schemas.weights.transports.gloo import TRANSPORT
from schemas.weights.transports.protocol import Rendezvous
from tests.fakes.learner.transfers import send_all

if TYPE_CHECKING:
    import torch

    Weights = dict[str, torch.Tensor]

pytestmark = [
    pytest.mark.timeout(300),
    # vLLM and transformers warn while they are imported.
    pytest.mark.filterwarnings("ignore"),
]

LENGTH = 256
TIMEOUT_S = 20.0
REFIT = RefitConfig(bucket_mib=1)
SAMPLING = Sampling(max_new_tokens=24, temperature=1.0, top_p=1.0, top_k=None)


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("tiny-qwen3"))


class Oracle:
    """The tiny checkpoint's folder, and transformers' model of the same shape with weights of our choice."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        config = Qwen3Config(
            vocab_size=48,
            hidden_size=64,
            intermediate_size=768,  # more than one bucket of 1 MiB
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            tie_word_embeddings=True,
            max_position_embeddings=512,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        torch.set_num_threads(1)
        self.folder = folder
        self.model = Qwen3ForCausalLM(config).eval()
        self.load(self.weights(0))
        self.model.save_pretrained(folder)
        self.plan = make_plan(tensor_index(folder), "float32", REFIT.bucket_mib)

    def weights(self, seed: int) -> Weights:
        """Random tensors by Hugging Face name; large enough for log-probabilities to differ by much between seeds."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(p.shape, generator=generator) * 0.2 if p.dim() > 1 else p.detach().clone()
            for name, p in self.model.named_parameters()
        }

    def load(self, weights: Weights) -> None:
        self.model.load_state_dict(weights, strict=False)

    def logprobs(self, weights: Weights, tokens: list[int], temperature: float = 1.0, top_k: int | None = None) -> list[float]:
        """float [len - 1]: of tokens 1.., given those before."""
        import torch

        self.load(weights)
        with torch.no_grad():
            logits = self.model(torch.tensor([tokens])).logits[0, :-1].double() / temperature
        if top_k is not None:
            logits[logits < logits.topk(top_k).values[:, -1:]] = float("-inf")
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])
        found: list[float] = chosen[:, 0].tolist()
        return found

    def probe(self, weights: Weights) -> list[float]:
        return self.logprobs(weights, probe_tokens(48, LENGTH))


@pytest.fixture(scope="session")
def vllm(oracle: Oracle) -> Iterator[Engine]:
    from producer.engine.vllm_engine import VllmEngine

    engine = VllmEngine(*settings(oracle))
    yield engine
    asyncio.run(engine.close())
    with pytest.raises(EngineDead):
        asyncio.run(engine.generate("late", [1], SAMPLING))


def settings(oracle: Oracle, **scripted: Any) -> tuple[ModelConfig, GenerationConfig, ProducerConfig, RefitConfig]:
    model = ModelConfig(path=str(oracle.folder), dtype="float32", max_total_sequence_length=LENGTH)
    # Small and eager, so that a test of waiting requests has some.
    vllm = {"max_num_seqs": 32, "max_num_batched_tokens": 512}
    return model, GenerationConfig(), ProducerConfig(scripted=scripted, vllm=vllm), REFIT


@pytest.fixture(params=["scripted", "vllm"])
def engine(request: pytest.FixtureRequest, oracle: Oracle) -> Engine:
    if request.param == "vllm":
        real: Engine = request.getfixturevalue("vllm")
        return real
    return ScriptedEngine(*settings(oracle, seconds_per_token=0.002, tokens=100))


@contextmanager
def sending(
    oracle: Oracle, weights: Weights, version: int, plan: WeightPlan | None = None, probe: Sequence[float] | None = None
) -> Iterator[tuple[TransferOffer, list[str | TransferError]]]:
    """A learner's side on a thread: yields the offer; the digest is in the list that comes with it."""
    plan = plan or oracle.plan
    sender = TRANSPORT.sender("127.0.0.1", TIMEOUT_S)
    at = sender.open(2)
    probe = oracle.probe(weights) if probe is None else probe
    outcome: list[str | TransferError] = []

    def send() -> None:
        try:
            sender.connect()
            outcome.append(send_all(plan, sender, iter(weights.items()), probe))
        except TransferError as error:
            outcome.append(error)
        finally:
            sender.close()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield offer(version, at), outcome
    finally:
        thread.join(TIMEOUT_S + 5)
        assert not thread.is_alive()


def offer(version: int, at: Rendezvous) -> TransferOffer:
    return TransferOffer(version, at, world=2, rank_offset=1, timeout_s=TIMEOUT_S)


async def refit(engine: Engine, oracle: Oracle, seed: int, *, drop_caches: bool = True) -> Loaded:
    """One whole refit to the weights of `seed`, under the next version."""
    weights = oracle.weights(seed)
    await engine.pause(drop_caches=drop_caches)
    with sending(oracle, weights, engine.version + 1) as (offered, outcome):
        loaded = await engine.receive(offered)
    assert outcome == [loaded.digest]
    assert loaded.probe_gap < 1e-4
    await engine.resume()
    return loaded


async def progressed(engine: Engine, count: int, *request_ids: str) -> None:
    """Wait until every one of the requests has `count` tokens."""
    end = time.monotonic() + 30
    while not all(engine.progress().get(request_id, 0) >= count for request_id in request_ids):
        assert time.monotonic() < end, engine.progress()
        await asyncio.sleep(0.001)


def check(completion: Completion, sampling: Sampling, version: int) -> None:
    assert 1 <= len(completion.token_ids) <= sampling.max_new_tokens
    assert len(completion.logprobs) == len(completion.token_ids)
    assert all(-100 < value < 0 for value in completion.logprobs)
    assert [(s.version, s.start, s.end) for s in completion.spans] == [(version, 0, len(completion.token_ids))]
    assert completion.ending is Ending.LENGTH or len(completion.token_ids) < sampling.max_new_tokens


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
        long = Sampling(200, 1.0, 1.0, None)
        await engine.pause(drop_caches=False)
        task = asyncio.create_task(engine.generate("gone", [1, 2], long))
        await appeared(engine, "gone")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.resume()
        check(await engine.generate("gone", [1, 2], SAMPLING), SAMPLING, engine.version)
        assert set(engine.progress()) == {""}

    asyncio.run(main())


async def appeared(engine: Engine, request_id: str) -> None:
    end = time.monotonic() + 30
    while request_id not in engine.progress():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("drop_caches", [False, True])
def test_pause_freezes_running_requests_queues_new_ones_and_resume_goes_on(engine: Engine, drop_caches: bool) -> None:
    async def main() -> None:
        long = Sampling(200, 1.0, 1.0, None)
        name = f"frozen-{drop_caches}-2"
        running = asyncio.create_task(engine.generate(name, [3, 4], long))
        await progressed(engine, 3, name)
        await engine.pause(drop_caches=drop_caches)
        before = engine.progress()
        new = asyncio.create_task(engine.generate("queued", [5], SAMPLING))
        await appeared(engine, "queued")
        await asyncio.sleep(0.05)
        assert engine.progress() == before | {"queued": 0}
        assert not running.done()
        await engine.resume()
        check(await running, long, engine.version)
        check(await new, SAMPLING, engine.version)

    asyncio.run(main())


def test_a_refit_brings_the_sent_weights_and_its_label(engine: Engine, oracle: Oracle) -> None:
    async def main() -> None:
        version = engine.version
        loaded = await refit(engine, oracle, seed=11)
        assert (loaded.version, engine.version) == (version + 1, version + 1)
        check(await engine.generate("after", [1, 2], SAMPLING), SAMPLING, version + 1)
        assert (await refit(engine, oracle, seed=11)).digest == loaded.digest
        assert (await refit(engine, oracle, seed=12)).digest != loaded.digest

    asyncio.run(main())


def test_running_requests_carry_both_versions_over_a_refit(engine: Engine, oracle: Oracle) -> None:
    async def main() -> None:
        long = Sampling(200, 1.0, 1.0, None)
        names = ["across-0", "across-1", "across-2"]
        tasks = [asyncio.create_task(engine.generate(name, [7, n], long)) for n, name in enumerate(names)]
        await progressed(engine, 5, *names)
        frozen = engine.progress()
        version = engine.version
        await refit(engine, oracle, seed=21)
        for name, completion in zip(names, await asyncio.gather(*tasks), strict=True):
            first, second = completion.spans
            assert (first.version, first.start, second.version) == (version, 0, version + 1)
            assert frozen[name] <= first.end == second.start < second.end == len(completion.token_ids)

    asyncio.run(main())


def test_the_loop_runs_on_while_weights_are_awaited(engine: Engine, oracle: Oracle) -> None:
    async def main() -> None:
        await engine.pause(drop_caches=False)
        weights = oracle.weights(31)
        sender = TRANSPORT.sender("127.0.0.1", TIMEOUT_S)
        receiving = asyncio.create_task(engine.receive(offer(engine.version + 1, sender.open(2))))
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert "" in engine.progress()
        assert not receiving.done()
        await asyncio.to_thread(sender.connect)
        digest = await asyncio.to_thread(send_all, oracle.plan, sender, iter(weights.items()), oracle.probe(weights))
        assert (await receiving).digest == digest
        sender.close()
        await engine.resume()

    asyncio.run(main())


def test_weights_that_do_not_match_the_digest_are_not_loaded(
    engine: Engine, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        await refit(engine, oracle, seed=41)
        version = engine.version
        await engine.pause(drop_caches=True)
        monkeypatch.setattr("learner.transfer.sending.checksum", lambda buffer: 1)
        with sending(oracle, oracle.weights(42), version + 1) as (offered, _), pytest.raises(TransferError, match="digest"):
            await engine.receive(offered)
        await engine.resume()
        await serves(engine, oracle, 41, version)

    asyncio.run(main())


async def serves(engine: Engine, oracle: Oracle, seed: int, version: int) -> None:
    """The engine serves these weights: by log-probabilities for vLLM, by the bytes kept for the scripted one."""
    completion = await engine.generate("still", [9, 8, 7], SAMPLING)
    check(completion, SAMPLING, version)
    if isinstance(engine, ScriptedEngine):
        assert engine.weights is not None
        kept = dict(engine.weights.tensors())
        assert kept.keys() == oracle.weights(seed).keys()
        assert all(kept[name].equal(tensor) for name, tensor in oracle.weights(seed).items())
    else:
        expected = oracle.logprobs(oracle.weights(seed), [9, 8, 7, *completion.token_ids])[2:]
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


DYING_SENDER = """
import os, signal, sys
from learner.transfer.sending import broadcast
from schemas.weights.plan import make_plan, tensor_index
from schemas.weights.transports.gloo import TRANSPORT
import torch
plan = make_plan(tensor_index(sys.argv[1]), "float32", 1)
sender = TRANSPORT.sender("127.0.0.1", 20.0)
at = sender.open(2)
print(at.host, at.port, at.prefix, flush=True)
sender.connect()
def tensors():
    for bucket in plan.buckets[:1]:
        for name, shape, _, _ in plan.places(bucket):
            yield name, torch.zeros(shape)
    os.kill(os.getpid(), signal.SIGKILL)
broadcast(plan, [sender], tensors(), [])
"""


def dying_sender(oracle: Oracle) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", DYING_SENDER, str(oracle.folder)], stdout=subprocess.PIPE, text=True)


def test_a_sender_killed_in_the_middle_leaves_the_old_weights(engine: Engine, oracle: Oracle) -> None:
    assert len(oracle.plan.buckets) > 1

    async def main() -> None:
        await refit(engine, oracle, seed=51)
        version = engine.version
        await engine.pause(drop_caches=True)
        with dying_sender(oracle) as sender:
            assert sender.stdout is not None
            host, port, prefix = (await asyncio.to_thread(sender.stdout.readline)).split()
            started = time.monotonic()
            with pytest.raises(TransferError):
                await engine.receive(offer(version + 1, Rendezvous(host, int(port), prefix)))
            assert time.monotonic() - started < TIMEOUT_S / 2
        assert sender.returncode == -signal.SIGKILL
        await engine.resume()
        await serves(engine, oracle, 51, version)
        await refit(engine, oracle, seed=52)
        await serves(engine, oracle, 52, version + 1)

    asyncio.run(main())


def test_an_offer_that_nobody_stands_behind_fails_in_its_time(engine: Engine) -> None:
    async def main() -> None:
        version = engine.version
        await engine.pause(drop_caches=False)
        started = time.monotonic()
        with pytest.raises(TransferError):
            await engine.receive(TransferOffer(99, Rendezvous("127.0.0.1", 9, "none"), 2, 1, timeout_s=1.0))
        assert time.monotonic() - started < 10
        await engine.resume()
        check(await engine.generate("on", [1], SAMPLING), SAMPLING, version)

    asyncio.run(main())


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
