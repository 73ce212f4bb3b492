"""What all losses share: the mean that is taken, and where the KL penalty enters."""

from dataclasses import replace

import pytest
import torch

from learner.grpo.inputs import Counts, LossInputs
from learner.grpo.losses.find import find_loss
from learner.grpo.objective import objective
from schemas.config.loss import ClippedPgConfig
from tests.fakes.learner.loss_inputs import COUNTS, curr, gradient, loss_inputs


def test_a_long_trajectory_counts_once_in_a_sequence_level_loss() -> None:
    cfg = ClippedPgConfig(token_level_loss=False)
    mask = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    batch = LossInputs(-mask, -mask, None, torch.ones(2), mask, torch.ones(2))
    grad = torch.autograd.grad(objective(find_loss(cfg), current := curr(), batch, Counts(3, 2), cfg).objective / 3, current)[0]
    assert grad.tolist() == [pytest.approx([0, -0.5, 0]), pytest.approx([0, -0.25, -0.25])]


def test_reference_kl_pulls_back_and_is_bounded() -> None:
    batch = loss_inputs(advantage=0.0)
    near, far = (replace(batch, ref_BT=value * batch.token_mask_BT) for value in (-2.0, 60.0))
    cfg = ClippedPgConfig(reference_policy_kl_penalty=0.1)
    assert (gradient(near, cfg)[:, 1:] > 0).all()
    assert objective(find_loss(cfg), curr(), far, COUNTS, cfg).kl_BT.max().item() == cfg.kl_output_clamp_value
    with pytest.raises(ValueError, match="reference policy"):
        objective(find_loss(cfg), curr(), loss_inputs(), COUNTS, cfg)
