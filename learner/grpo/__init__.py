"""The algorithm: from sealed groups to the scalar that the gradient is taken of, and the metrics beside it.

Pure functions of tensors and groups: no Megatron, no collectives, no clock. What is summed over ranks is returned as sums. In the
order of a step:

    split.py, batch.py, advantages.py     groups to one rank's tensors
    losses/                               the cost of each token, chosen by `loss_fn.name`
    importance.py, kl.py                  what every loss shares: correction of off-policy tokens, KL penalty
    objective.py                          the mean over the batch
    metrics.py, group_metrics.py          what is reported

Names of tensors end in their shape: B trajectories, T tokens (`curr_BT`). Formulas cite their source. Names of keys and metrics
are NeMo RL's where it has them; tests/contract/test_grpo_golden.py compares with numbers from its own functions.
"""
