"""Process groups of megatron, and the few collectives that the policy needs itself."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from learner.model.megatron import model_parallel_cuda_manual_seed, mpu
from schemas.config.learner import LearnerConfig
from schemas.errors import ConfigError, Problem

COLLECTIVE_TIMEOUT_MIN = 10
"""How long a collective waits for a rank that computes. A rank that dies ends it at once."""


def initialize(learner: LearnerConfig, seed: int) -> None:
    """Make the groups. `torch.distributed` must be up.

    Raises:
        ConfigError: the world has another size than `learner.nproc`.
    """
    world = dist.get_world_size()
    if world != learner.nproc:
        raise ConfigError(
            [
                Problem(
                    "learner.nproc",
                    learner.nproc,
                    f"{world} processes were started",
                    "give torchrun and the config the same number",
                )
            ]
        )
    # megatron's groups are global to the process. A second policy in it, as in tests, may have another layout.
    sizes = (learner.tensor_model_parallel_size, learner.pipeline_model_parallel_size)
    if mpu.model_parallel_is_initialized() and sizes != (
        mpu.get_tensor_model_parallel_world_size(),
        mpu.get_pipeline_model_parallel_world_size(),
    ):
        mpu.destroy_model_parallel()
    if not mpu.model_parallel_is_initialized():
        mpu.initialize_model_parallel(
            *sizes,
            context_parallel_size=learner.context_parallel_size,
            distributed_timeout_minutes=COLLECTIVE_TIMEOUT_MIN,
        )
    # Nothing is drawn in training: there is no dropout, and weights are loaded. But the generators are part of a checkpoint, and
    # megatron's forks of them must exist before a model is built.
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def sum_over_data_parallel(tensor: Tensor) -> Tensor:
    """In place; the same bits on every rank of the group."""
    dist.all_reduce(tensor, group=mpu.get_data_parallel_group())
    return tensor


def max_over_data_parallel(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=mpu.get_data_parallel_group())
    return tensor


def from_last_stage(tensor: Tensor) -> Tensor:
    """In place: what the last pipeline stage holds, on all of them. Only that one computes logits, and all need the outcome."""
    if mpu.get_pipeline_model_parallel_world_size() > 1:
        dist.broadcast(tensor, mpu.get_pipeline_model_parallel_last_rank(), group=mpu.get_pipeline_model_parallel_group())
    return tensor
