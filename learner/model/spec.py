"""A Hugging Face config to megatron's: layer spec, transformer config, model of this rank."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from megatron.core import parallel_state as mpu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from learner.model.attention import SdpaCoreAttention
from learner.model.convert import padded_vocab
from learner.model.hf import rope_parameters
from learner.model.norm import RMSNorm
from schemas.config.learner import LearnerConfig
from schemas.errors import ConfigError, Problem


def uses_transformer_engine() -> bool:
    return torch.cuda.is_available() and find_spec("transformer_engine") is not None


def transformer_config(hf: Any, learner: LearnerConfig, dtype: torch.dtype) -> Any:
    """Dropout off everywhere: a step must be a pure function of its batch. Fusions off: they need kernels of Apex.

    Raises:
        ConfigError: heads or layers that the configured layout does not divide.
    """
    _check_layout(hf, learner)
    pipelined = learner.pipeline_model_parallel_size > 1
    return TransformerConfig(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        ffn_hidden_size=hf.intermediate_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=head_width(hf),
        normalization="RMSNorm",
        layernorm_epsilon=hf.rms_norm_eps,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=has_qkv_bias(hf),
        qk_layernorm=has_qk_norm(hf),
        attention_dropout=0.0,
        hidden_dropout=0.0,
        attention_softmax_in_fp32=True,
        rotary_interleaved=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        # Initialisation also marks which parameters are split, which gradient clipping goes by: it must run, and do nothing.
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        use_cpu_initialization=not torch.cuda.is_available(),
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=learner.tensor_model_parallel_size,
        pipeline_model_parallel_size=learner.pipeline_model_parallel_size,
        context_parallel_size=learner.context_parallel_size,
        sequence_parallel=learner.sequence_parallel,
        deallocate_pipeline_outputs=False,
        cuda_graph_scope=[],
        calculate_per_token_loss=True,
        deterministic_mode=learner.deterministic and uses_transformer_engine(),
        # Micro batches differ in length; stages then tell each other the shapes. The dispatcher type is what the check asks for.
        variable_seq_lengths=pipelined,
        moe_token_dispatcher_type="alltoall" if pipelined else "allgather",
    )


def _leave(weight: Tensor) -> Tensor:
    return weight


def _check_layout(hf: Any, learner: LearnerConfig) -> None:
    problems = [
        Problem(f"learner.{key}", size, f"the model has {count} {what}", f"use a divisor of {count}")
        for key, what, count in (
            ("tensor_model_parallel_size", "key and value heads", hf.num_key_value_heads),
            ("pipeline_model_parallel_size", "layers", hf.num_hidden_layers),
        )
        if count % (size := getattr(learner, key))
    ]
    if problems:
        raise ConfigError(problems)


def head_width(hf: Any) -> int:
    return int(getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads)


def has_qk_norm(hf: Any) -> bool:
    return bool(hf.model_type == "qwen3")


def has_qkv_bias(hf: Any) -> bool:
    return bool(hf.model_type == "qwen2")


def build(hf: Any, config: Any) -> Any:
    """The GPTModel of this rank's pipeline stage, weights not set."""
    rope = rope_parameters(hf)
    scaling: dict[str, Any] = {}
    if rope["rope_type"] == "llama3":
        scaling = {"rope_scaling": True, "rope_scaling_factor": rope["factor"]}
    elif rope["rope_type"] == "linear":
        scaling = {"seq_len_interpolation_factor": rope["factor"]}
    model = GPTModel(
        config,
        _layer_spec(config),
        vocab_size=padded_vocab(hf.vocab_size, config.tensor_model_parallel_size),
        max_sequence_length=hf.max_position_embeddings,
        pre_process=mpu.is_pipeline_first_stage(),
        post_process=mpu.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_percent=1.0,
        rotary_base=rope["rope_theta"],
        parallel_output=True,
        share_embeddings_and_output_weights=bool(hf.tie_word_embeddings),
        **scaling,
    )
    if rope["rope_type"] == "llama3":
        _set_llama3_frequencies(model.rotary_pos_emb, rope, config.kv_channels)
    return model


def _set_llama3_frequencies(rotary: Any, rope: dict[str, Any], width: int) -> None:
    """megatron takes Llama 3.1's own bounds and context length for granted; other checkpoints have others."""
    inverse = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    bounds = (rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"])
    rotary.inv_freq = rotary._apply_scaling(inverse, *bounds).to(rotary.inv_freq.device)  # noqa: SLF001


def _layer_spec(config: Any) -> Any:
    if uses_transformer_engine():
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    attention = layer.self_attention.submodules
    attention.core_attention = SdpaCoreAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[spec] * get_num_layers_to_build(config), layer_norm=RMSNorm)
