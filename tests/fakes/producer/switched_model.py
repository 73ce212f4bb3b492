"""A tiny transformers model that computes what an engine must when its weights change in the middle of a sequence.

A sequence is computed in parts, each with weights of its own, on the keys and values that the parts before it have left: that is
what an engine does which keeps its cache over a refit. A single part is the plain model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from producer.engine.protocol import TransferOffer
from schemas.errors import TransferError
from schemas.weights.plan import make_plan, tensor_index
from schemas.weights.probe import probe_tokens
from schemas.weights.transports.gloo import TRANSPORT
from tests.fakes.learner.transfers import send_all

VOCAB = 48
TIMEOUT_S = 20.0
Part = tuple[int, int]
"""(seed of the weights, end): they compute the positions from the end of the part before up to this one."""


class SwitchedModel:
    """A checkpoint folder of random weights, and any number of other weights of the same shape, named by their seed."""

    def __init__(self, folder: Path, longest: int, bucket_mib: int) -> None:
        config = Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            tie_word_embeddings=True,
            max_position_embeddings=longest,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        torch.set_num_threads(1)
        self._model = Qwen3ForCausalLM(config).eval()
        self._models: dict[int, Any] = {}
        self._model.save_pretrained(folder)
        self.folder = folder
        self.longest = longest
        self.plan = make_plan(tensor_index(folder), "float32", bucket_mib)

    def weights(self, seed: int) -> dict[str, torch.Tensor]:
        """By Hugging Face name; so large that two seeds hardly ever agree on a token's log-probability."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(p.shape, generator=generator) * 0.2 if p.dim() > 1 else p.detach().clone()
            for name, p in self._model.named_parameters()
        }

    def logprobs(self, tokens: Sequence[int], parts: Sequence[Part], temperature: float = 1.0) -> list[float]:
        """float [len - 1]: of tokens 1.., each given those before it. `parts` end at the last token."""
        cache = DynamicCache()
        logits, start = [], 0
        for seed, end in parts:
            with torch.no_grad():
                logits.append(self._loaded(seed)(torch.tensor([tokens[start:end]]), past_key_values=cache).logits[0])
            start = end
        assert start == len(tokens)
        scaled = torch.cat(logits)[:-1].double() / temperature
        found: list[float] = scaled.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
        return found

    def _loaded(self, seed: int) -> Any:
        if seed not in self._models:
            model = Qwen3ForCausalLM(self._model.config).eval()
            model.load_state_dict(self.weights(seed), strict=False)
            model.tie_weights()
            self._models[seed] = model
        return self._models[seed]

    @contextmanager
    def sending(self, seed: int, version: int, *, broken: bool = False) -> Iterator[TransferOffer]:
        """The learner's side of one transfer, on a thread. `broken`: it leaves once everybody has joined."""
        sender = TRANSPORT.sender("127.0.0.1", TIMEOUT_S)
        at = sender.open(2)
        probe = probe_tokens(VOCAB, self.longest)
        scored = self.logprobs(probe, [(seed, len(probe))])
        failures: list[TransferError] = []

        def send() -> None:
            try:
                sender.connect()
                if not broken:
                    send_all(self.plan, sender, iter(self.weights(seed).items()), scored)
            except TransferError as error:
                failures.append(error)
            finally:
                sender.close()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield TransferOffer(version, at, world=2, rank_offset=1, timeout_s=TIMEOUT_S)
        finally:
            thread.join(TIMEOUT_S + 5)
            assert not thread.is_alive()
        assert not failures, failures
