"""The learner's side of one transfer, as tests of receivers need it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from learner.transfer.sending import broadcast
from schemas.weights.plan import WeightPlan
from schemas.weights.transports.protocol import Sender


def send_all(
    plan: WeightPlan, sender: Sender, tensors: Iterable[tuple[str, torch.Tensor]], probe_logprobs: Sequence[float]
) -> str:
    """Send to this one group. Returns the digest.

    Raises:
        TransferError: after `tensors` was drained.
    """
    sent = broadcast(plan, [sender], tensors, probe_logprobs)
    if sent.failed:
        raise sent.failed[0]
    return sent.digest
