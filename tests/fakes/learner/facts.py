"""What a checkpoint's arithmetic depended on, for manifests that are written by hand."""

from __future__ import annotations

from learner.checkpoint.manifest import Determinism

FACTS = Determinism(
    torch="2",
    megatron="0",
    transformers="5",
    device="cpu",
    cpu_capability="AVX2",
    threads=1,
    data_parallel_size=1,
    tensor_model_parallel_size=1,
    pipeline_model_parallel_size=1,
    train_micro_batch_size=4,
    deterministic=True,
)
