"""From a family and a Hugging Face config to the Megatron model of this rank.

The family says what the model is; here is what the run makes of it: layout, precision, determinism.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learner.model.families.family import Family
from learner.model.families.forms import padded_vocab
from learner.model.layers.blocks import uses_transformer_engine
from learner.model.megatron import GPTModel, TransformerConfig, mpu
from schemas.config.learner import LearnerConfig
from schemas.errors import ConfigError, Problem


def transformer_config(family: Family, hf: Any, learner: LearnerConfig, dtype: torch.dtype) -> Any:
    """Megatron's config. Dropout off everywhere: a step must be a pure function of its batch.

    Raises:
        ConfigError: heads or layers that the configured layout does not divide.
    """
    _check_layout(hf, learner)
    pipelined = learner.pipeline_model_parallel_size > 1
    return TransformerConfig(
        **family.transformer_options(hf),
        attention_dropout=0.0,
        hidden_dropout=0.0,
        attention_softmax_in_fp32=True,
        # Fusions need kernels of Apex or Transformer Engine.
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
        # The loss is a sum; megatron divides the gradient by the tokens of the whole batch, once, at the end.
        calculate_per_token_loss=True,
        deterministic_mode=learner.deterministic and uses_transformer_engine(),
        # Micro batches differ in length: the stages send each other the shapes, else gloo crashes. megatron allows that with
        # this dispatcher of experts only, and checks it for dense models too.
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


def build(family: Family, hf: Any, config: Any) -> Any:
    """The GPTModel of this rank's pipeline stage, weights not set. `config` is `transformer_config`'s."""
    model = GPTModel(
        config,
        family.block_spec(config),
        vocab_size=padded_vocab(hf.vocab_size, config.tensor_model_parallel_size),
        pre_process=mpu.is_pipeline_first_stage(),
        post_process=mpu.is_pipeline_last_stage(),
        # Each rank keeps the logits of its part of the vocabulary: together they would be the largest tensor of all.
        parallel_output=True,
        **family.model_options(hf, config),
    )
    family.finish(model, hf)
    return model
