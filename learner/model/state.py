"""Saving and loading the learner's state with Megatron's distributed checkpoints, in a form that any layout can load.

Only `fully_reshardable` is used: of the other forms of the distributed optimizer's state one cannot be saved and one loads wrong.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from learner.model.layers import cpu_compat
from learner.model.megatron import ShardedTensor, dist_checkpointing, mpu, nested_values
from schemas.errors import WeirError

log = logging.getLogger(__name__)

FOLDER = "megatron"
_CONFIGURED = ("betas", "eps", "max_lr", "min_lr")
"""What an optimizer's groups of parameters have from the config: a checkpoint is loaded under the config of now."""

_CONTENT = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
    "distrib_optim_fully_reshardable_mem_efficient": False,
}


class Writing:
    """This rank's share of a state on its way to disk, all of it copied if it is written in the background.

    Every rank makes one (`begin`) and calls `finish`, in the same order as all other collectives. Files are written by a thread
    and never by a forked process, which could not live beside the threads of gloo.
    """

    def __init__(self, request: Any, *, background: bool) -> None:
        self._request = request
        self._thread: threading.Thread | None = None
        if request.async_fn is None:
            return  # this rank has nothing to write
        buckets = request.async_fn_args[1]
        staged = request.preload_fn()
        if background:
            staged = _copied(buckets, staged)
            self._thread = threading.Thread(target=self._write, args=(staged,), name="checkpoint-writer", daemon=True)
            self._thread.start()
        else:
            self._write(staged)

    def _write(self, buckets: list[Any]) -> None:
        rank, _, results = self._request.async_fn_args
        try:
            self._request.async_fn(rank, buckets, results)
        except Exception as error:  # noqa: BLE001 - top of a thread; `finish` raises it on all ranks
            log.error("writing checkpoint files failed: %s", error)
            results.put(error)

    def wait(self, timeout_s: float) -> bool:
        """Whether this rank's files are written, or cannot be, after `timeout_s` at most."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def finish(self) -> None:
        """Wait for this rank's files and complete the checkpoint with all others.

        Raises:
            OSError: a rank could not write; on all ranks, the cause on rank 0.
        """
        if self._thread is not None:
            self._thread.join()
        try:
            with _quiet():
                for step in self._request.finalize_fns:
                    step()
        except CheckpointException as error:
            raise OSError(_causes(error)) from error


def begin(folder: Path, model: Any, optimizer: Any, scheduler: Any, *, background: bool = False) -> Writing:
    """Start writing `folder/megatron`. All ranks call it. In the background: it returns as soon as the state is copied.

    Raises:
        OSError: what is written at once cannot be.
    """
    target = folder / FOLDER
    # Every rank opens files in it, so it must be there before any of them continues.
    if dist.get_rank() == 0:
        target.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    cpu_compat.write_in_process()
    tree = _tree(model, optimizer, scheduler, loading=False)
    with _quiet():
        try:
            request = dist_checkpointing.save(tree, str(target), content_metadata=dict(_CONTENT), async_sharded_save=True)
        except RuntimeError as error:
            # torch's zip writer turns a full disk into a RuntimeError; any other one is a mistake of the program.
            if "PytorchStreamWriter" not in str(error):
                raise
            raise OSError(str(error).splitlines()[0]) from error
    return Writing(request, background=background)


def save(folder: Path, model: Any, optimizer: Any, scheduler: Any) -> None:
    """Write `folder/megatron`. All ranks call it; it returns when all have written.

    Raises:
        OSError: a rank could not write.
    """
    begin(folder, model, optimizer, scheduler).finish()


def _copied(buckets: list[Any], staged: list[Any]) -> list[Any]:
    """`staged` with copies of the tensors that still are the training state; those that came from a GPU are copies already."""
    copies = []
    # megatron stages tensors by moving them to the CPU. There they are already: `staged` would be written while it is trained.
    for (_, _, (_, live)), (path, key, (items, tensors)) in zip(buckets, staged, strict=True):
        fresh = [
            (item, tensor if own.device.type != "cpu" else tensor.clone())
            for (_, own), (item, tensor) in zip(live, tensors, strict=True)
        ]
        copies.append((path, key, (items, fresh)))
    return copies


def _causes(error: CheckpointException) -> str:
    """What went wrong on which rank, without the stacks."""
    causes = {rank: str(cause).removeprefix("Worker failure: ") for rank, (cause, _) in error.failures.items()}
    return "; ".join(f"rank {rank}: {cause}" for rank, cause in causes.items()) or "another rank could not write its files"


def load(folder: Path, model: Any, optimizer: Any, scheduler: Any) -> None:
    """Read `folder/megatron` into the given parts: weights, moments, position in the schedule, random state.

    All ranks call it; the layout may be another than that which saved, and so may learning rates and other optimizer settings.

    Raises:
        WeirError: the checkpoint is of another model, or its files cannot be read.
    """
    tree = _tree(model, optimizer, scheduler, loading=True)
    # First, and for all tensors: once megatron reads, the model is neither the one nor the other.
    _check_shapes(folder, tree["model"])
    with _quiet():
        try:
            tree = dist_checkpointing.load(tree, str(folder / FOLDER))
        except (CheckpointException, dist_checkpointing.core.CheckpointingException) as error:
            raise WeirError(f"the checkpoint {folder} cannot be loaded: {str(error).strip().splitlines()[-1]}") from error
    model.load_state_dict(tree["model"])
    own = [{name: group[name] for name in _CONFIGURED if name in group} for group in optimizer.param_groups]
    # The order counts: loading brings the saved groups with it, so what is configured now is put back after it.
    optimizer.load_state_dict(_with_step(tree["optimizer"]))
    cpu_compat.complete_adam_state(optimizer.optimizer)
    for group, configured in zip(optimizer.param_groups, own, strict=True):
        group.update(configured)
    # Of the schedule only the position is state. megatron's own loading demands the very numbers that the checkpoint was made
    # with, also those of the end of a schedule, which a longer run has moved.
    scheduler.num_steps = 0
    scheduler.step(int(tree["scheduler"]["num_steps"]))
    torch.set_rng_state(tree["rng"])


def _check_shapes(folder: Path, wanted: Any) -> None:
    """Compare what the model has with what the checkpoint holds, before anything of the model is changed."""
    try:
        with _quiet():
            held = dist_checkpointing.load_tensors_metadata(str(folder / FOLDER))
    except Exception as error:  # megatron and pickle raise whatever they like when a file is not theirs
        raise WeirError(f"the checkpoint {folder} cannot be read: {type(error).__name__}: {error}") from error
    shapes = {tensor.key: tuple(tensor.global_shape) for tensor in held.values()}
    wrong = []
    for tensor in nested_values(wanted):
        # megatron allows a mismatch for embedding and head alone: another layout fills their rows up to another number.
        if not isinstance(tensor, ShardedTensor) or tensor.allow_shape_mismatch:
            continue
        shape, found = tuple(tensor.global_shape), shapes.get(tensor.key)
        if found != shape:
            wrong.append(f"{tensor.key} is {'missing' if found is None else found}, the model has {shape}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise WeirError(
            f"the checkpoint {folder} is of another model: {'; '.join(wrong[:3])}{more}; use the model.path that it was made with"
        )


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
    # The distributed optimizer takes its group from here and has no default for it.
    metadata = {**_CONTENT, "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True)}
    sharded = model.sharded_state_dict(metadata=metadata)
    optimizer_state = optimizer.sharded_state_dict(sharded, is_loading=loading, metadata=metadata)
    return {"model": sharded, "optimizer": optimizer_state, "scheduler": scheduler.state_dict(), "rng": torch.get_rng_state()}
