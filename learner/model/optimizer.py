"""Optimizer, learning rate and the digest of what they hold."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from learner.model.layers import cpu_compat
from learner.model.megatron import OptimizerConfig as MegatronOptimizerConfig
from learner.model.megatron import OptimizerParamScheduler, get_megatron_optimizer, mpu
from schemas.config.learner import LearnerConfig
from schemas.config.learner import OptimizerConfig as OptimizerSection
from schemas.errors import WeirError


def build(model: Any, learner: LearnerConfig, dtype: torch.dtype) -> Any:
    """Megatron's optimizer over a wrapped model, its moments made."""
    section = learner.optimizer
    config = MegatronOptimizerConfig(
        optimizer="adam",
        lr=section.lr,
        min_lr=section.min_lr,
        weight_decay=section.weight_decay,
        adam_beta1=section.adam_beta1,
        adam_beta2=section.adam_beta2,
        adam_eps=section.adam_eps,
        clip_grad=section.clip_grad,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=learner.use_distributed_optimizer,
    )
    # The constructor sorts parameters by the names of CUDA tensor types, and knows no others.
    cpu_compat.fix_distributed_optimizer()
    with cpu_compat.cuda_type_names([model]):
        built = get_megatron_optimizer(config, [model])
    # megatron makes one optimizer for dense parameters and one for experts. Clipping, digest and checkpoints here know one.
    chained = getattr(built, "chained_optimizers", [built])
    if len(chained) != 1:
        raise WeirError(f"megatron made {len(chained)} optimizers for a dense model")
    cpu_compat.complete_adam_state(chained[0].optimizer)
    return chained[0]


def schedule(optimizer: Any, section: OptimizerSection, total_steps: int) -> Any:
    """The schedule, standing at version 0: a warm-up of W versions starts with lr / W, not with 0."""
    decay = section.lr_decay_steps or total_steps
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=section.lr,
        min_lr=section.min_lr,
        lr_warmup_steps=section.lr_warmup_steps,
        # megatron asserts that a decay is longer than its warm-up; a short run may end within the warm-up.
        lr_decay_steps=max(decay, section.lr_warmup_steps + 1),
        lr_decay_style=section.lr_decay_style,
        start_wd=section.weight_decay,
        end_wd=section.weight_decay,
        wd_incr_steps=total_steps,
        wd_incr_style="constant",
    )
    # At 0 steps a warm-up stands at a learning rate of 0: the first version would be trained for nothing.
    scheduler.step(1)
    return scheduler


def step(optimizer: Any, clip_grad: float) -> tuple[bool, float]:
    """Clip and apply the gradients that the backward pass left. Returns (applied, gradient norm before clipping).

    A norm that is not finite applies nothing: weights and moments stay as they are. The norm is the same on all ranks, so they
    decide alike.
    """
    # True if megatron itself found something that is not finite, which it looks for only where it scales the loss.
    if optimizer.prepare_grads():
        return False, math.inf
    norm = float(optimizer.get_grad_norm())
    if not math.isfinite(norm):
        return False, norm
    if clip_grad > 0:
        optimizer.clip_grad_norm(clip_grad)
    return bool(optimizer.step_with_ready_grads()), norm


def state_digest(optimizer: Any, scheduler: Any, *, replica: int) -> str:
    """sha256 (hex) over float32 weights, moments, steps and the schedule's position of all ranks, in rank order.

    `replica` is this rank's data-parallel index if its state is a copy of that of index 0, and 0 if it is a part of the whole.
    The copies are compared on the way.

    Raises:
        WeirError: two copies differ, so that the run is no longer one model.
    """
    digest = hashlib.sha256(f"step={scheduler.num_steps}".encode())
    for group in optimizer.optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.optimizer.state[parameter]
            for tensor in (parameter, state["exp_avg"], state["exp_avg_sq"], state["step"]):
                digest.update(_bytes(tensor))
    entries: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(entries, (replica, _model_rank(), digest.hexdigest()))
    # Compared, not assumed to be equal: copies that drift apart still train, and would show versions later, as noise.
    first = {model_rank: value for copy, model_rank, value in reversed(entries) if copy == 0}
    for rank, (copy, model_rank, value) in enumerate(entries):
        if copy and value != first[model_rank]:
            raise WeirError(f"rank {rank} (data-parallel {copy}) holds other weights or moments than its copy on data-parallel 0")
    whole = [value for copy, _, value in entries if copy == 0]
    return hashlib.sha256("".join(whole).encode()).hexdigest()


def _model_rank() -> int:
    return int(
        mpu.get_pipeline_model_parallel_rank() * mpu.get_tensor_model_parallel_world_size() + mpu.get_tensor_model_parallel_rank()
    )


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().to("cpu", torch.float32).contiguous().view(-1)
    return memoryview(flat.numpy()).cast("B")
