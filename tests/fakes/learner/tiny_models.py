"""Tiny random Hugging Face checkpoints of each supported family, and batches for them. Imported by tests and by their workers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learner.grpo.batch import TrainBatch

VOCAB = 48
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "qwen3-untied": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False, "vocab_size": 47},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "llama": {"model_type": "llama", "tie_word_embeddings": False, "rms_norm_eps": 1e-5},
    "llama-rope-llama3": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama-rope-linear": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
}


def make_model(folder: Path, family: str = "qwen3") -> Path:
    """Save a model whose norms and biases are not trivial and whose distribution is not flat."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**(SIZES | FAMILIES[family]))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def make_batch(rows: int = 16, width: int = 32, seed: int = 1) -> TrainBatch:
    """Random prompts and responses of random lengths, sampled by a policy some way off."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(12, width + 1, (rows,), generator=g)
    at = torch.arange(width)[None]
    tokens = torch.randint(3, VOCAB - 1, (rows, width), generator=g) * (at < lengths[:, None])
    prompts = torch.randint(2, 8, (rows,), generator=g)[:, None]
    mask = ((at >= prompts) & (at < lengths[:, None])).float()
    return TrainBatch(
        tokens=tokens,
        token_mask=mask,
        sample_mask=torch.ones(rows),
        gen_logprobs=-2.0 - 2.0 * torch.rand(rows, width, generator=g) * mask,
        advantages=torch.randn(rows, generator=g),
        ages=torch.randint(0, 2, (rows, width), generator=g) * mask.long(),
        lengths=lengths,
        slots=torch.arange(rows) // 4,
    )


def share(batch: TrainBatch, rank: int, size: int) -> TrainBatch:
    """The rows of one of `size` data-parallel ranks."""
    each = len(batch) // size
    return batch.rows(torch.arange(rank * each, (rank + 1) * each), batch.tokens.shape[1])


def hf_logprobs(model: torch.nn.Module, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """[B, S]: log p of each token given those before it by a transformers model; 0 at position 0. Right padding is harmless."""
    logits = model(tokens).logits.float() / temperature
    found = torch.log_softmax(logits[:, :-1], -1).gather(-1, tokens[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros(len(tokens), 1), found], 1)
