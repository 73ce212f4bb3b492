"""Llama 2 and 3, and the many models that share their architecture and `model_type`, such as SmolLM2.

The plain dense decoder: `Family` as it is. Llama 3.1 and later scale their rotary frequencies (`rope_type` llama3). Checkpoints
with biases in attention or MLP exist under this `model_type`; they are refused.
"""

from learner.model.families.family import Family

FAMILY = Family()
