"""The tiny model: a Qwen3 of 100 thousand parameters that half knows six operations on strings of digits.

In its warm-up it sees, for every prompt, the answer of one of the six operations, drawn uniformly, so that it samples each of
them now and then. The run's reward then picks one: add one to every digit. Without the warm-up the reward is too rare to learn
from.
The build is deterministic (seeded generators, one thread) and takes ten seconds on one core.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

from producer.environments.tiny_inc import held_out

PAD, BOS, EOS, UNK = range(4)
_CHARACTERS = string.digits + string.ascii_lowercase + "+-=>:"
VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", *_CHARACTERS]
_PADDED_VOCABULARY = 48
_DIGITS = 4
_SEED = 1
_STEPS = 500
_BATCH = 64
_LEARNING_RATE = 3e-3
_WARMUP_STEPS = 20

OPERATIONS: tuple[Callable[[str], str], ...] = (
    lambda s: s,
    lambda s: s[::-1],
    lambda s: "".join(sorted(s)),
    lambda s: "".join(sorted(s, reverse=True)),
    lambda s: "".join(str((int(c) + 1) % 10) for c in s),
    lambda s: "".join(str((int(c) - 1) % 10) for c in s),
)


def build(path: Path) -> None:
    """Fill the folder with the model and its tokenizer, as a Hugging Face checkpoint."""
    import torch

    write_tokenizer(path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            model = _model()
            _warm_up(model, random.Random(_SEED))
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(path)


def write_tokenizer(path: Path) -> None:
    """One id a character; `<s>` in front, no chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(path)


def _model() -> Any:
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=_PADDED_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # the smallest that vLLM's attention on CPUs has
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    return model


def _warm_up(model: Any, rng: random.Random) -> None:
    """Cross entropy on the answer and its end token, for fresh random prompts that are not held out."""
    import torch

    ids = {token: i for i, token in enumerate(VOCABULARY)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.0)
    model.train()
    for step in range(_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * min(1.0, (step + 1) / _WARMUP_STEPS)
        rows = []
        for _ in range(_BATCH):
            digits = _train_string(rng)
            text = f"{digits}>{rng.choice(OPERATIONS)(digits)}"
            rows.append([BOS, *(ids[c] for c in text), EOS])
        tokens = torch.tensor(rows)
        answer = slice(_DIGITS + 2, None)  # what comes after `<s>`, the digits and `>`
        logits = model(tokens[:, :-1]).logits[:, _DIGITS + 1 :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, answer].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def _train_string(rng: random.Random) -> str:
    while True:
        digits = "".join(rng.choice(string.digits) for _ in range(_DIGITS))
        if not held_out(digits):
            return digits
