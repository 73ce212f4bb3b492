"""Saving and loading the learner's state with Megatron's distributed checkpoints, in a form that any layout can load.

Only `fully_reshardable` is used: of the other forms of the distributed optimizer's state one cannot be saved and one loads wrong.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu

from learner.model import cpu_compat

FOLDER = "megatron"
_CONFIGURED = ("betas", "eps", "max_lr", "min_lr")
"""What an optimizer's groups of parameters have from the config: a checkpoint is loaded under the config of now."""

_CONTENT = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
    "distrib_optim_fully_reshardable_mem_efficient": False,
}


def save(folder: Path, model: Any, optimizer: Any, scheduler: Any) -> None:
    """Write `folder/megatron`. All ranks call it; it returns when all have written."""
    target = folder / FOLDER
    if dist.get_rank() == 0:
        target.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    cpu_compat.write_in_process()
    tree = _tree(model, optimizer, scheduler, loading=False)
    with _quiet():
        dist_checkpointing.save(tree, str(target), content_metadata=dict(_CONTENT))
    dist.barrier()


def load(folder: Path, model: Any, optimizer: Any, scheduler: Any) -> None:
    """Read `folder/megatron` into the given parts: weights, moments, position in the schedule, random state.

    All ranks call it; the layout may be another than that which saved, and so may learning rates and other optimizer settings.
    """
    tree = _tree(model, optimizer, scheduler, loading=True)
    with _quiet():
        tree = dist_checkpointing.load(tree, str(folder / FOLDER))
    model.load_state_dict(tree["model"])
    own = [{name: group[name] for name in _CONFIGURED if name in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(_with_step(tree["optimizer"]))
    cpu_compat.complete_adam_state(optimizer.optimizer)
    for group, configured in zip(optimizer.param_groups, own, strict=True):
        group.update(configured)
    # Of the schedule only the position is state. megatron's own loading demands the very numbers that the checkpoint was made
    # with, also those of a schedule's end that a run which goes on for longer has moved.
    scheduler.num_steps = 0
    scheduler.step(int(tree["scheduler"]["num_steps"]))
    torch.set_rng_state(tree["rng"])


def _with_step(saved: dict[str, Any]) -> dict[str, Any]:
    """megatron leaves the common step out where it is 0, and then cannot load it (not so the distributed optimizer)."""
    states = saved.get("optimizer", saved).get("state", {})
    if "common_step" not in states and any(isinstance(state, dict) and "exp_avg" in state for state in states.values()):
        states["common_step"] = torch.zeros(())
    return saved


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """megatron's checkpoint code calls what torch has renamed; nobody here can act on the warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


def _tree(model: Any, optimizer: Any, scheduler: Any, *, loading: bool) -> dict[str, Any]:
    metadata = {**_CONTENT, "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True)}
    sharded = model.sharded_state_dict(metadata=metadata)
    optimizer_state = optimizer.sharded_state_dict(sharded, is_loading=loading, metadata=metadata)
    return {"model": sharded, "optimizer": optimizer_state, "scheduler": scheduler.state_dict(), "rng": torch.get_rng_state()}
