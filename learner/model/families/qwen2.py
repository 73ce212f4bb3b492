"""Qwen2, Qwen2.5 and QwQ: the dense decoder, with a bias in the q, k and v projections.

The bias is part of the architecture, config.json does not mention it. Sliding windows are an option that released checkpoints
carry switched off (`use_sliding_window`); switched on they are refused.
"""

from learner.model.families.family import Family

FAMILY = Family(qkv_bias=True)
