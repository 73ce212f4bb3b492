"""Two trajectories of two generated tokens, for losses, and the gradient that a loss gives them."""

import torch
from torch import Tensor

from learner.grpo.inputs import Counts, LossInputs
from learner.grpo.losses.find import find_loss
from learner.grpo.objective import objective
from schemas.config.loss import LossConfig

COUNTS = Counts(tokens=4, sequences=2)


def loss_inputs(prev: float = -1.0, gen: float = -1.0, advantage: float = 1.0) -> LossInputs:
    mask = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    return LossInputs(prev * mask, gen * mask, None, torch.full((2,), advantage), mask, torch.ones(2))


def curr(value: float = -1.0) -> Tensor:
    return torch.full((2, 3), value, requires_grad=True)


def gradient(batch: LossInputs, cfg: LossConfig, value: float = -1.0) -> Tensor:
    current = curr(value)
    objective(find_loss(cfg), current, batch, COUNTS, cfg).objective.backward()
    assert current.grad is not None
    return current.grad
