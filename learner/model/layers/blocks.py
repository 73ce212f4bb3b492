"""Layer specs: which modules Megatron builds a layer of."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from learner.model.layers.attention import SdpaCoreAttention
from learner.model.layers.norm import RMSNorm
from learner.model.megatron import (
    TransformerBlockSubmodules,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
    get_num_layers_to_build,
)


def uses_transformer_engine() -> bool:
    return torch.cuda.is_available() and find_spec("transformer_engine") is not None


def dense_block(config: Any) -> Any:
    """Layers of self attention and one gated MLP, each behind an RMSNorm; the spec of this rank's pipeline stage.

    Args:
        config: the `TransformerConfig`.
    """
    if uses_transformer_engine():
        # Its norms live inside the layer that follows them: parameters then have other names (`Weight.aliases`).
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    # megatron's own local modules cannot serve: its norm refuses sequence parallelism, its attention has no grouped queries
    # without a copy of every key and value.
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    attention = layer.self_attention.submodules
    attention.core_attention = SdpaCoreAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    # The block gets the norm too: the last one, after all layers, is not part of a layer's spec.
    return TransformerBlockSubmodules(layer_specs=[spec] * get_num_layers_to_build(config), layer_norm=RMSNorm)
