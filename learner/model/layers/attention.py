"""Core attention for megatron's local layer spec: torch's scaled dot product attention, causal, with grouped queries.

Padding stands on the right and carries no loss, so the causal mask alone is enough: no token with loss sees any of it.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from learner.model.megatron import MegatronModule


class SdpaCoreAttention(MegatronModule):
    """query [s, b, heads, d], key and value [s, b, groups, d] -> [s, b, heads * d]; heads and groups of this rank.

    Raises:
        NotImplementedError: packed sequences.
    """

    # megatron makes it by keyword with all that any attention may need, and adds to that from release to release.
    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        # Otherwise the sequences of a pack would see each other, and no number would look wrong.
        if packed_seq_params is not None:
            raise NotImplementedError("packed sequences")
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        # `enable_gqa` shares a group's keys and values among its query heads; megatron's own module copies them for each.
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
        return out.permute(2, 0, 1, 3).flatten(2)
