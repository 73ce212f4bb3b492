"""megatron-core: the only module that imports it by name, so that its moves from release to release are one file's matter.

`cpu_compat.py` reaches further in, at run time, to patch what this release assumes of CUDA. Written for megatron-core 0.16.
"""

from __future__ import annotations

import logging
import os
import warnings

# megatron decorates small functions with torch.compile. On a CPU that costs minutes and needs a C++ compiler. The variable is
# read when torch.compile is first used, so it must be set before megatron is imported.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

# Every module that could use Apex or Transformer Engine warns that they are not installed; on a CPU that is no news.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    logging.getLogger("megatron").setLevel(logging.WARNING)
    from megatron.core import dist_checkpointing
    from megatron.core import parallel_state as mpu
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.module import Float16Module, MegatronModule
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

__all__ = [
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "Float16Module",
    "GPTModel",
    "MegatronModule",
    "OptimizerConfig",
    "OptimizerParamScheduler",
    "ShardedTensor",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "dist_checkpointing",
    "finalize_model_grads",
    "get_forward_backward_func",
    "get_gpt_layer_local_spec",
    "get_gpt_layer_with_transformer_engine_spec",
    "get_megatron_optimizer",
    "get_num_layers_to_build",
    "model_parallel_cuda_manual_seed",
    "mpu",
    "nested_values",
    "vocab_parallel_cross_entropy",
]
