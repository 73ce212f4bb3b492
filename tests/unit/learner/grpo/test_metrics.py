"""Sums that are divided once, at the end."""

import pytest
import torch

from learner.grpo.metrics import TOKEN_MEANS, age_sums, finish, merge
from tests.fakes.learner.loss_inputs import COUNTS, loss_inputs


def test_ages_without_tokens_have_no_metric() -> None:
    batch = loss_inputs(gen=-2.0)
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
