"""The loss, its gradient, its metrics and the advantages against numbers computed with NeMo RL's own functions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from learner.grpo.advantages import group_advantages
from learner.grpo.inputs import Counts, LossInputs
from learner.grpo.losses.find import find_loss
from learner.grpo.metrics import TOKEN_MEANS, age_sums, finish, token_sums
from learner.grpo.objective import LossTerms, objective
from schemas.config.loss import ClippedPgConfig

GOLDEN = json.loads((Path(__file__).parent / "golden" / "grpo.json").read_text())
DEFAULTS = {
    "reference_policy_kl_penalty": 0.01,
    "use_importance_sampling_correction": False,
    "truncated_importance_sampling_type": None,
}
TOKENS, SEQUENCES = 5, 2


def tensor(name: str) -> Tensor:
    return torch.tensor(GOLDEN["inputs"][name], dtype=torch.float32)


def config(case: str) -> ClippedPgConfig:
    return ClippedPgConfig.model_validate(DEFAULTS | GOLDEN["cases"][case]["cfg"])


def inputs() -> LossInputs:
    return LossInputs(
        prev_BT=tensor("prev"),
        gen_BT=tensor("gen"),
        ref_BT=tensor("ref"),
        advantages_B=tensor("advantages_per_seq"),
        token_mask_BT=tensor("token_mask"),
        sample_mask_B=tensor("sample_mask"),
    )


def loss_of(cfg: ClippedPgConfig, batch: LossInputs) -> tuple[float, Tensor, dict[str, float], LossTerms]:
    """Loss, gradient by the current log-probabilities, metrics: divided by the token count as Megatron does it."""
    curr = tensor("curr").requires_grad_()
    counts = Counts(TOKENS, SEQUENCES)
    terms = objective(find_loss(cfg), curr, batch, counts, cfg)
    terms.objective.backward()
    sums = token_sums(curr, batch, terms, counts, cfg)
    prev = curr.detach() if cfg.force_on_policy_ratio else batch.prev_BT
    metrics = finish(sums, *age_sums(prev, batch.gen_BT, batch.mask_BT, torch.zeros(2, 5, dtype=torch.int64)), counts)
    return terms.objective.item() / TOKENS, curr.grad / TOKENS, metrics, terms


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_loss_and_gradient_are_nemo_rls(case: str) -> None:
    loss, grad, metrics, _ = loss_of(config(case), inputs())
    assert loss == pytest.approx(GOLDEN["cases"][case]["loss"], abs=1e-6)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-9)
    torch.testing.assert_close(grad[:, 1:], torch.tensor(GOLDEN["cases"][case]["grad"]), atol=1e-6, rtol=0)
    assert not grad[:, 0].any()


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_metrics_are_nemo_rls(case: str) -> None:
    _, _, metrics, _ = loss_of(config(case), inputs())
    expected = dict(GOLDEN["cases"][case]["metrics"])
    # Ours is the mean weight before truncation, so that a drifting engine shows; for whole trajectories it is a mean over them.
    untruncated = {"tis_1.2": "is_correction", "icepop_0.8_1.2": "is_correction"}.get(case, case)
    expected["sampling_importance_ratio"] = GOLDEN["cases"][untruncated]["metrics"]["sampling_importance_ratio"]
    if case == "gspo_is":
        expected["sampling_importance_ratio"] /= SEQUENCES
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, abs=1e-6), name
    assert set(TOKEN_MEANS) <= set(metrics)


@pytest.mark.parametrize("case", GOLDEN["advantages"], ids=lambda c: f"{c['rewards']}-{'loo' if c['leave_one_out'] else 'mean'}")
def test_advantages_are_nemo_rls_with_an_exact_deviation(case: dict[str, Any]) -> None:
    found = group_advantages(case["rewards"], leave_one_out=case["leave_one_out"], normalize=True)
    assert found == pytest.approx(case["adv"], abs=1e-4)


def plain_loss(curr: Tensor, batch: LossInputs, eps: float) -> Tensor:
    """Clipped policy gradient with importance weights, written as on paper."""
    total, tokens = torch.zeros(()), 0
    for i in range(curr.shape[0]):
        for t in range(curr.shape[1]):
            if batch.token_mask_BT[i, t] and batch.sample_mask_B[i]:
                ratio = (curr[i, t] - batch.prev_BT[i, t]).exp()
                weight = (batch.prev_BT[i, t] - batch.gen_BT[i, t]).exp().clamp(max=2.0)
                advantage = batch.advantages_B[i]
                total = total - weight * torch.min(ratio * advantage, ratio.clamp(1 - eps, 1 + eps) * advantage)
                tokens += 1
    return total / tokens


def test_default_loss_is_the_plain_formula() -> None:
    batch = inputs()
    curr = tensor("curr").requires_grad_()
    plain = plain_loss(curr, batch, 0.2)
    plain.backward()
    loss, grad, _, _ = loss_of(ClippedPgConfig(), batch)
    assert loss == pytest.approx(plain.item(), abs=1e-6)
    torch.testing.assert_close(grad, curr.grad, atol=1e-7, rtol=0)
