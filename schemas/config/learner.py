"""Sections `learner`, `checkpointing` and `logger`: the Megatron side.

Light on purpose: the config check imports this module, so it must never import torch or megatron. Rules that involve other
sections are in `launch/config/rules.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.config.base import RESUME, UNTRAINED, Section, Unit


class OptimizerConfig(Section):
    """AdamW and the schedule of its learning rate. Its steps are versions."""

    lr: Annotated[float, Field(gt=0)] = 5.0e-6
    """Highest learning rate."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at the end of the decay."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay; not applied to biases and norms."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment."""
    adam_eps: Annotated[float, Field(gt=0)] = 1.0e-8
    """Added to the square root of the second moment."""
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    """Bound on the gradient's norm; 0: none."""
    lr_warmup_steps: Annotated[int, Field(ge=0), Unit("versions")] = 0
    """Versions of linear warm-up; the first of them trains with lr / lr_warmup_steps."""
    lr_decay_steps: Annotated[Annotated[int, Field(ge=1)] | None, Unit("versions")] = None
    """Versions until min_lr, warm-up included; null: the run's last step."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the decay after the warm-up."""

    @model_validator(mode="after")
    def _schedule(self) -> OptimizerConfig:
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr {self.min_lr} exceeds lr {self.lr}")
        if self.lr_decay_steps is not None and self.lr_warmup_steps >= self.lr_decay_steps:
            raise ValueError(f"lr_warmup_steps {self.lr_warmup_steps} leave nothing of lr_decay_steps {self.lr_decay_steps}")
        return self


class LearnerConfig(Section):
    """The Megatron side."""

    nproc: Annotated[int, Field(ge=1), Unit("processes")] = 1
    """Processes that torchrun starts on all machines together."""
    tensor_model_parallel_size: Annotated[int, Field(ge=1)] = 1
    """Number of processes over which each matrix is split."""
    pipeline_model_parallel_size: Annotated[int, Field(ge=1)] = 1
    """Number of processes over which the layers are split."""
    context_parallel_size: Literal[1] = 1
    """Only 1: long sequences are not split over processes yet."""
    sequence_parallel: bool = False
    """Split norms and dropouts over the tensor-parallel processes too."""
    train_global_batch_size: Annotated[Annotated[int, Field(ge=1)] | None, Unit("trajectories")] = None
    """Trajectories of one optimizer step; null: all of the version, in one step."""
    train_micro_batch_size: Annotated[int, Field(ge=1), Unit("trajectories")] = 64
    """Trajectories in one forward and backward pass of one process."""
    logprob_micro_batch_size: Annotated[Annotated[int, Field(ge=1)] | None, Unit("trajectories")] = None
    """Trajectories in one forward pass without gradient; null: train_micro_batch_size."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    use_distributed_optimizer: bool = False
    """Split the optimizer's state over the data-parallel processes."""
    sequence_packing: Literal[False] = False
    """Only false: trajectories are sorted by length and padded; packing is not built yet."""
    deterministic: bool = True
    """Use only deterministic algorithms, so that a step can be replayed bit for bit."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """Threads of torch in each process; null: as OMP_NUM_THREADS in the environment sets it."""
    rank_timeout_s: Annotated[float, Field(gt=0), UNTRAINED, RESUME] = 120.0
    """A process that hears nothing from rank 0 for this long exits; one that is stopped for three quarters of this time is
    killed. Must exceed refit.phase_timeout_s."""

    @property
    def model_parallel_size(self) -> int:
        """Processes that hold one copy of the model."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """nproc / model_parallel_size: the copies of the model, each training its share of the groups."""
        return self.nproc // self.model_parallel_size

    @model_validator(mode="after")
    def _layout(self) -> LearnerConfig:
        if self.nproc % self.model_parallel_size:
            raise ValueError(
                f"nproc {self.nproc} is not a multiple of the {self.model_parallel_size} processes of one model copy"
            )
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise ValueError("sequence_parallel needs tensor_model_parallel_size above 1")
        if self.sequence_parallel and 8 % self.tensor_model_parallel_size:
            raise ValueError("sequence_parallel cuts lengths, multiples of 8, by tensor_model_parallel_size; use 2, 4 or 8")
        return self


class CheckpointingConfig(Section):
    """Saving the learner's state."""

    save_period: Annotated[int, Field(ge=1), Unit("versions")] = 10
    """Versions from one checkpoint to the next; the last version always has one."""
    keep: Annotated[Annotated[int, Field(ge=1)] | None, Unit("checkpoints")] = None
    """How many of the newest checkpoints are kept, with the topics that they need; null: all."""
    async_save: bool = False
    """Training continues while a copy of the state is written; this takes memory for the copy in every process."""
    hf_export_at_end: bool = True
    """Also write the last version as a Hugging Face checkpoint."""


class LoggerConfig(Section):
    """Where metrics go, besides `metrics.jsonl` and the metrics topic."""

    tensorboard: bool = True
    """Write TensorBoard files into the run's folder."""
    wandb: bool = False
    """Log to Weights & Biases; needs the package `wandb`."""
    wandb_project: str | None = None
    """Project of Weights & Biases; null: the run's name."""
