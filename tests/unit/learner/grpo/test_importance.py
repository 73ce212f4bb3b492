"""How tokens off the policy are weighed, seen in the gradient."""

import pytest
import torch

from learner.grpo.losses.find import find_loss
from learner.grpo.metrics import TOKEN_MEANS, token_sums
from learner.grpo.objective import objective
from schemas.config.loss import ClippedPgConfig
from tests.fakes.learner.loss_inputs import COUNTS, curr, gradient, loss_inputs


def test_an_engine_that_gives_nonsense_weighs_nothing() -> None:
    batch = loss_inputs(gen=float("-inf"))
    assert not gradient(batch, ClippedPgConfig()).any()


def test_weights_are_truncated_dropped_or_left() -> None:
    batch = loss_inputs(prev=-1.0, gen=-2.0)  # weight e
    cases = {
        "left": ({"truncated_importance_sampling_type": None}, 2.718282),
        "tis": ({}, 2.0),
        "icepop": ({"truncated_importance_sampling_type": "icepop", "truncated_importance_sampling_ratio_min": 0.5}, 0.0),
        "off": ({"use_importance_sampling_correction": False, "truncated_importance_sampling_type": None}, 1.0),
    }
    for name, (keys, weight) in cases.items():
        grad = gradient(batch, ClippedPgConfig.model_validate(keys))
        assert grad[0, 1].item() == pytest.approx(-weight, abs=1e-5), name


def test_sequence_masks_drop_whole_trajectories_by_their_mean() -> None:
    keys = {"truncated_importance_sampling_type": "seq-mask-tis", "truncated_importance_sampling_ratio_min": 0.999}
    cfg = ClippedPgConfig.model_validate(keys | {"truncated_importance_sampling_ratio": 1.002})
    batch = loss_inputs()
    batch.gen_BT[0] = torch.tensor([0.0, -1.5, -0.5])  # weights that cancel out
    batch.gen_BT[1] = torch.tensor([0.0, -1.5, -1.0])
    grad = gradient(batch, cfg)
    assert grad[0].tolist() == pytest.approx([0.0, -(2.718282**0.5), -(2.718282**-0.5)], abs=1e-5)
    assert not grad[1].any()
    terms = objective(find_loss(cfg), curr(), batch, COUNTS, cfg)
    sums = token_sums(curr(), batch, terms, COUNTS, cfg)
    assert dict(zip(TOKEN_MEANS, (sums / COUNTS.tokens).tolist(), strict=True))["is_oob_ratio"] == 0.5
