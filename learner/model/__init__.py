"""The Megatron side. Importing any module below imports megatron-core, here and once, without its noise.

(Hints to install Apex and Transformer Engine come from every module that could use them.)
"""

import logging
import os
import warnings

# megatron compiles small functions with torch.compile, which costs minutes on a CPU and needs a compiler there.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    logging.getLogger("megatron").setLevel(logging.WARNING)
    import megatron.core.dist_checkpointing
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.models.gpt.gpt_model
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel  # noqa: F401
