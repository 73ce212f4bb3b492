"""Properties of the loss that the golden numbers do not show."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from learner.grpo.inputs import Counts, LossInputs
from learner.grpo.kl import kl_estimate
from learner.grpo.losses.find import find_loss
from learner.grpo.metrics import TOKEN_MEANS, age_sums, finish, merge, token_sums
from learner.grpo.objective import objective
from schemas.config.loss import ClippedPgConfig

COUNTS = Counts(tokens=4, sequences=2)


def inputs(prev: float = -1.0, gen: float = -1.0, advantage: float = 1.0) -> LossInputs:
    mask = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    return LossInputs(prev * mask, gen * mask, None, torch.full((2,), advantage), mask, torch.ones(2))


def curr(value: float = -1.0) -> Tensor:
    return torch.full((2, 3), value, requires_grad=True)


def gradient(batch: LossInputs, cfg: ClippedPgConfig, value: float = -1.0) -> Tensor:
    current = curr(value)
    objective(find_loss(cfg), current, batch, COUNTS, cfg).objective.backward()
    assert current.grad is not None
    return current.grad


@pytest.mark.parametrize(
    ("value", "advantage", "moves"), [(-0.5, 1.0, False), (-1.5, 1.0, True), (-1.5, -1.0, False), (-0.5, -1.0, True)]
)
def test_clipping_stops_only_what_already_went_far_enough(value: float, advantage: float, moves: bool) -> None:
    assert bool(gradient(inputs(advantage=advantage), ClippedPgConfig(), value).any()) == moves


def test_dual_clip_bounds_the_cost_of_a_bad_token() -> None:
    batch = inputs(advantage=-1.0)
    free, bound = ClippedPgConfig(), ClippedPgConfig(ratio_clip_c=3.0)
    assert objective(find_loss(free), curr(2.0), batch, COUNTS, free).objective.item() > 12
    assert objective(find_loss(bound), curr(2.0), batch, COUNTS, bound).objective.item() == pytest.approx(12)


def test_an_engine_that_gives_nonsense_weighs_nothing() -> None:
    batch = inputs(gen=float("-inf"))
    assert not gradient(batch, ClippedPgConfig()).any()


def test_weights_are_truncated_dropped_or_left() -> None:
    batch = inputs(prev=-1.0, gen=-2.0)  # weight e
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
    batch = inputs()
    batch.gen_BT[0] = torch.tensor([0.0, -1.5, -0.5])  # weights that cancel out
    batch.gen_BT[1] = torch.tensor([0.0, -1.5, -1.0])
    grad = gradient(batch, cfg)
    assert grad[0].tolist() == pytest.approx([0.0, -(2.718282**0.5), -(2.718282**-0.5)], abs=1e-5)
    assert not grad[1].any()
    terms = objective(find_loss(cfg), curr(), batch, COUNTS, cfg)
    sums = token_sums(curr(), batch, terms, COUNTS, cfg)
    assert dict(zip(TOKEN_MEANS, (sums / COUNTS.tokens).tolist(), strict=True))["is_oob_ratio"] == 0.5


def test_a_long_trajectory_counts_once_in_a_sequence_level_loss() -> None:
    cfg = ClippedPgConfig(token_level_loss=False)
    mask = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    batch = LossInputs(-mask, -mask, None, torch.ones(2), mask, torch.ones(2))
    grad = torch.autograd.grad(objective(find_loss(cfg), current := curr(), batch, Counts(3, 2), cfg).objective / 3, current)[0]
    assert grad.tolist() == [pytest.approx([0, -0.5, 0]), pytest.approx([0, -0.25, -0.25])]


def test_reference_kl_pulls_back_and_is_bounded() -> None:
    batch = inputs(advantage=0.0)
    near, far = (replace(batch, ref_BT=value * batch.token_mask_BT) for value in (-2.0, 60.0))
    cfg = ClippedPgConfig(reference_policy_kl_penalty=0.1)
    assert (gradient(near, cfg)[:, 1:] > 0).all()
    assert objective(find_loss(cfg), curr(), far, COUNTS, cfg).kl_BT.max().item() == cfg.kl_output_clamp_value
    with pytest.raises(ValueError, match="reference policy"):
        objective(find_loss(cfg), curr(), inputs(), COUNTS, cfg)


def test_kl_estimators_vanish_where_policies_agree() -> None:
    for kind in ("k1", "k2", "k3"):
        assert kl_estimate(torch.zeros(3), kind).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="known: k1, k2, k3"):
        kl_estimate(torch.zeros(3), "k4")


def test_ages_without_tokens_have_no_metric() -> None:
    batch = inputs(gen=-2.0)
    ages = torch.tensor([[0, 0, 3], [0, 0, 0]])
    metrics = finish(torch.zeros(len(TOKEN_MEANS)), *age_sums(batch.prev_BT, batch.gen_BT, batch.mask_BT, ages), COUNTS)
    assert {name for name in metrics if "_age_" in name} == {
        "token_mult_prob_error_age_0",
        "token_mult_prob_error_age_3",
        "gen_logprob_error_max_age_0",
        "gen_logprob_error_max_age_3",
    }
    assert metrics["gen_logprob_error_max_age_3"] == 1.0
    assert metrics["token_mult_prob_error_age_0"] == pytest.approx(2.718282)


def test_steps_of_a_version_merge_by_mean_and_maximum() -> None:
    merged = merge([{"loss": 1.0, "gen_logprob_error_max_age_0": 0.5}, {"loss": 3.0, "gen_logprob_error_max_age_0": 0.25}])
    assert merged == {"loss": 2.0, "gen_logprob_error_max_age_0": 0.5}
