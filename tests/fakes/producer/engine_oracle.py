"""A checkpoint of random weights, transformers' model of it, and senders of other weights: what engines are tested with.

Weights really travel: a sender on another thread or in another process, gloo between them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from producer.engine.protocol import Completion, Ending, Engine, Loaded, Sampling, TransferOffer
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
from tests.support import eventually_in_loop

if TYPE_CHECKING:
    import torch

    Weights = dict[str, torch.Tensor]

MARKS = [
    pytest.mark.timeout(300),
    # vLLM and transformers warn while they are imported.
    pytest.mark.filterwarnings("ignore"),
]

LENGTH = 256
TIMEOUT_S = 20.0
PROGRESS_S = 60.0
REFIT = RefitConfig(bucket_mib=1)
SAMPLING = Sampling(max_new_tokens=24, temperature=1.0, top_p=1.0, top_k=None)
LONG = Sampling(max_new_tokens=200, temperature=1.0, top_p=1.0, top_k=None)


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


def settings(oracle: Oracle, **scripted: Any) -> tuple[ModelConfig, GenerationConfig, ProducerConfig, RefitConfig]:
    model = ModelConfig(path=str(oracle.folder), dtype="float32", max_total_sequence_length=LENGTH)
    # Small and eager, so that a test of waiting requests has some.
    vllm = {"max_num_seqs": 32, "max_num_batched_tokens": 512}
    return model, GenerationConfig(), ProducerConfig(scripted=scripted, vllm=vllm), REFIT


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

    def all_have() -> bool:
        tokens = engine.progress()
        assert min(tokens.get(request_id, 0) for request_id in request_ids) >= count, tokens
        return True

    await eventually_in_loop(all_have, PROGRESS_S, f"{count} tokens of each request")


async def appeared(engine: Engine, request_id: str) -> None:
    await eventually_in_loop(lambda: request_id in engine.progress(), PROGRESS_S, f"request {request_id} in the engine")


def check(completion: Completion, sampling: Sampling, version: int) -> None:
    assert 1 <= len(completion.token_ids) <= sampling.max_new_tokens
    assert len(completion.logprobs) == len(completion.token_ids)
    assert all(-100 < value < 0 for value in completion.logprobs)
    assert [(s.version, s.start, s.end) for s in completion.spans] == [(version, 0, len(completion.token_ids))]
    assert completion.ending is Ending.LENGTH or len(completion.token_ids) < sampling.max_new_tokens


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
