"""The losses, one a file. `loss_fn.name` names the file; its config section has the same name in `schemas/config/loss.py`.

A file has one function, `surrogate(curr_BT, inputs, cfg) -> Surrogate`: pure, on tensors alone. What all losses share (the
correction of off-policy tokens, the KL penalty, the mean) is in `learner/grpo/objective.py`. Nothing here may import Megatron.
docs/losses.md adds one step by step.
"""
