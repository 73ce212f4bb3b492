"""RMSNorm that may be split over sequence-parallel ranks; the one that megatron wraps around torch's may not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RMSNorm(torch.nn.Module):
    """x / rms(x) * weight (arXiv:1910.07467), the division in float32. Shapes [..., hidden]; the result has the dtype of x."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # Under sequence parallelism each rank's gradient is that of its part of the sequence. megatron sums those of parameters
        # with this mark over the tensor-parallel ranks; without it their copies of the norm drift apart.
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        # Rounded before the weight is applied, as transformers does it: the other order has other last bits in bfloat16.
        return self.weight * wide.to(x.dtype)
