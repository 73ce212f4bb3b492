"""Properties of the clipped policy gradient that the golden numbers do not show."""

import pytest

from learner.grpo.losses.find import find_loss
from learner.grpo.objective import objective
from schemas.config.loss import ClippedPgConfig
from tests.fakes.learner.loss_inputs import COUNTS, curr, gradient, loss_inputs


@pytest.mark.parametrize(
    ("value", "advantage", "moves"), [(-0.5, 1.0, False), (-1.5, 1.0, True), (-1.5, -1.0, False), (-0.5, -1.0, True)]
)
def test_clipping_stops_only_what_already_went_far_enough(value: float, advantage: float, moves: bool) -> None:
    assert bool(gradient(loss_inputs(advantage=advantage), ClippedPgConfig(), value).any()) == moves


def test_dual_clip_bounds_the_cost_of_a_bad_token() -> None:
    batch = loss_inputs(advantage=-1.0)
    free, bound = ClippedPgConfig(), ClippedPgConfig(ratio_clip_c=3.0)
    assert objective(find_loss(free), curr(2.0), batch, COUNTS, free).objective.item() > 12
    assert objective(find_loss(bound), curr(2.0), batch, COUNTS, bound).objective.item() == pytest.approx(12)
