"""Qwen3, the dense sizes: the dense decoder, with an RMSNorm on queries and keys.

The width of a head (`head_dim`) need not be hidden size over heads. The sparse sizes are another family
(`model_type` qwen3_moe).
"""

from learner.model.families.family import Family

FAMILY = Family(qk_norm=True)
