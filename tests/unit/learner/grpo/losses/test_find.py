"""From `loss_fn.name` to a function, also one of the user's own."""

import pytest
import torch
from torch import Tensor

from learner.grpo.inputs import LossInputs
from learner.grpo.losses.find import find_loss
from schemas.config.loss import CustomLossConfig
from schemas.errors import ConfigError
from tests.fakes.learner.loss_inputs import curr, loss_inputs

HERE = "tests.unit.learner.grpo.losses.test_find"


def scaled(curr_BT: Tensor, inputs: LossInputs, scale: float = 1.0) -> Tensor:
    return -scale * inputs.advantages_B[:, None] * curr_BT


def too_short(curr_BT: Tensor, inputs: LossInputs) -> Tensor:
    return curr_BT[:, 1:]


def no_tensor(curr_BT: Tensor, inputs: LossInputs) -> float:
    return 0.0


def own(name: str, **args: float) -> CustomLossConfig:
    return CustomLossConfig.model_validate({"name": f"{HERE}:{name}", "args": args})


def test_a_function_of_the_users_own_gives_the_cost_and_gets_plain_ratios_for_the_metrics() -> None:
    found = find_loss(own("scaled", scale=2.0))(curr(-0.5), loss_inputs(advantage=3.0))
    assert found.cost_BT.tolist() == [[3.0] * 3] * 2
    torch.testing.assert_close(found.ratio_BT[:, 1:], torch.full((2, 2), 0.5).exp())
    assert not found.ratio_BT.requires_grad


def test_a_name_or_an_argument_that_does_not_fit_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"has no scald; did you mean scaled\?"):
        find_loss(own("scald"))
    with pytest.raises(ConfigError, match=r"it is called as loss\(curr_BT, inputs, width=\.\.\.\)"):
        find_loss(own("scaled", width=1.0))


@pytest.mark.parametrize(
    ("name", "error", "says"), [("too_short", ValueError, r"shape \(2, 2\)"), ("no_tensor", TypeError, "a float")]
)
def test_what_it_returns_is_checked(name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        find_loss(own(name))(curr(), loss_inputs())
