"""A loss is added with one file and one config class: those that docs/losses.md shows, in a copy of the source tree."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakes.source_tree import SourceTree, shown_code

FILE, CONFIG = "learner/grpo/losses/cispo.py", "schemas/config/loss.py"

PROGRAM = """
import json, torch
from learner.grpo.losses.find import find_loss
from schemas.config.file import load_for_process
from tests.docs.config_table import tables
from tests.fakes.learner.loss_inputs import loss_inputs

config = load_for_process("launch/configs/tiny.yaml", [
    "run.id=t", "loss_fn={name: cispo, weight_max: 0.5, truncated_importance_sampling_ratio: 3.0}",
])
inputs = loss_inputs(advantage=2.0)
curr = (inputs.prev_BT + torch.tensor([-1.0, 0.25, 3.0])).requires_grad_()
found = find_loss(config.loss_fn)(curr, inputs)
found.cost_BT.sum().backward()
weight = ((curr - inputs.prev_BT) * inputs.token_mask_BT).exp().detach().clamp(max=1.5)
print(json.dumps({
    "section": [config.loss_fn.name, config.loss_fn.weight_max, config.loss_fn.truncated_importance_sampling_ratio],
    "cost": torch.equal(found.cost_BT, -weight * 2.0 * curr),
    "gradient": torch.equal(curr.grad, -weight * 2.0),
    "clipped": int((found.clipped_BT < found.ratio_BT).sum()),
    "documented": "| `loss_fn.weight_max` | float, > 0 | `2.0` |" in tables(),
}))
"""


def test_the_file_and_the_class_that_the_page_shows_are_all_that_a_loss_needs(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path / "tree")
    tree.add(FILE, shown_code("losses.md", 1))
    tree.insert(CONFIG, "class CustomLossConfig(", shown_code("losses.md", 2) + "\n\n")
    tree.replace_from(CONFIG, "AnyLossConfig = ", shown_code("losses.md", 3))
    assert tree.changed == [FILE, CONFIG]
    found = json.loads(tree.run(PROGRAM))
    assert found == {"section": ["cispo", 0.5, 3.0], "cost": True, "gradient": True, "clipped": 2, "documented": True}


def test_the_function_of_a_users_own_that_the_page_shows_is_found(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path / "tree")
    tree.add("my_losses.py", shown_code("losses.md", 0))
    program = """
    from learner.grpo.losses.find import find_loss
    from schemas.config.file import load_for_process
    from tests.fakes.learner.loss_inputs import curr, loss_inputs
    config = load_for_process("launch/configs/tiny.yaml", ["run.id=t", "loss_fn={name: my_losses:cost, args: {scale: 0.5}}"])
    print(find_loss(config.loss_fn)(curr(-1.0), loss_inputs(advantage=3.0)).cost_BT.tolist()[0])
    """
    assert tree.run(program).strip() == "[1.5, 1.5, 1.5]"
