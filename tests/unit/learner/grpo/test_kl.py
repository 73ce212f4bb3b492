"""The estimators of the divergence from the reference policy."""

import pytest
import torch

from learner.grpo.kl import kl_estimate


def test_kl_estimators_vanish_where_policies_agree() -> None:
    for kind in ("k1", "k2", "k3"):
        assert kl_estimate(torch.zeros(3), kind).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="known: k1, k2, k3"):
        kl_estimate(torch.zeros(3), "k4")


@pytest.mark.parametrize(("kind", "off"), [("k1", 0.0), ("k2", 0.02), ("k3", 0.0)])
def test_estimates_average_to_the_divergence(kind: str, off: float) -> None:
    """Summed exactly over four outcomes; k2 alone is biased."""
    sampled = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    other = torch.tensor([0.3, 0.3, 0.3, 0.1], dtype=torch.float64)
    exact = (sampled * (sampled / other).log()).sum().item()
    found = (sampled * kl_estimate((other / sampled).log(), kind)).sum().item()
    assert abs(found - exact) <= off + 1e-12
    assert (abs(found - exact) > 1e-4) == (kind == "k2")
