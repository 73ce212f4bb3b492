"""The sections of a run's file that the learner alone reads.

Light on purpose: the config check and `--dry-run` import this module, so it must never import torch or megatron.
Rules that involve other sections are checked in `launch/`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.config.sections import Section

Positive = Annotated[float, Field(gt=0)]


class LossFnConfig(Section):
    """The clipped policy gradient loss. Names and meanings are NeMo RL's."""

    ratio_clip_min: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The probability ratio is clipped below at 1 minus this."""
    ratio_clip_max: Annotated[float, Field(ge=0)] = 0.2
    """The probability ratio is clipped above at 1 plus this."""
    ratio_clip_c: Annotated[float, Field(gt=1)] | None = None
    """Dual clip: bound of the ratio where the advantage is negative; null: none."""
    reference_policy_kl_penalty: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence from the first checkpoint's policy. Above 0 a copy of those weights is kept."""
    reference_policy_kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that divergence."""
    kl_input_clamp_value: Positive | None = 20.0
    """Bound of the absolute log-ratio that the estimator sees; null: none."""
    kl_output_clamp_value: Positive | None = 10.0
    """Bound of the absolute estimate of a token; null: none."""
    use_on_policy_kl_approximation: bool = False
    """Weigh the estimate of each token by current over sampling probability."""
    token_level_loss: bool = True
    """Mean over all tokens of the batch; false: mean over trajectories of their token means."""
    use_importance_sampling_correction: bool = True
    """Weigh tokens by previous over sampling probability: engine and learner never agree exactly, and groups may be old."""
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = "tis"
    """tis: clamp that weight; icepop: drop tokens out of bounds; seq-mask-tis: drop trajectories whose mean is out of bounds."""
    truncated_importance_sampling_ratio: Positive = 2.0
    """Upper bound of the weight (of its geometric mean over a trajectory for seq-mask-tis)."""
    truncated_importance_sampling_ratio_min: Annotated[float, Field(ge=0)] | None = None
    """Lower bound. icepop and seq-mask-tis need it; null is 0 for tis."""
    sequence_level_importance_ratios: bool = False
    """One ratio for a whole trajectory (GSPO)."""
    disable_ppo_ratio: bool = False
    """Plain REINFORCE: no ratio, no clipping."""
    force_on_policy_ratio: bool = False
    """Take the current policy as the previous one: the ratio is 1 and has a gradient. One optimizer step a version only."""

    @model_validator(mode="after")
    def _truncation(self) -> LossFnConfig:
        kind, low = self.truncated_importance_sampling_type, self.truncated_importance_sampling_ratio_min
        if kind is not None and not self.use_importance_sampling_correction:
            raise ValueError(
                f"truncated_importance_sampling_type {kind} truncates a weight that use_importance_sampling_correction switches "
                "off; set the type to null or switch the correction on"
            )
        if kind in ("icepop", "seq-mask-tis") and low is None:
            raise ValueError(f"{kind} needs truncated_importance_sampling_ratio_min (0.5 for icepop, 0.999 for seq-mask-tis)")
        if low is not None and low > self.truncated_importance_sampling_ratio:
            raise ValueError(
                f"truncated_importance_sampling_ratio_min {low} exceeds the ratio {self.truncated_importance_sampling_ratio}"
            )
        return self

    @model_validator(mode="after")
    def _combinations(self) -> LossFnConfig:
        if self.sequence_level_importance_ratios and self.token_level_loss:
            raise ValueError("sequence_level_importance_ratios needs token_level_loss false")
        if self.sequence_level_importance_ratios and self.truncated_importance_sampling_type == "seq-mask-tis":
            raise ValueError("seq-mask-tis keeps token weights, sequence_level_importance_ratios has none; use tis or icepop")
        if self.disable_ppo_ratio:
            for name in ("force_on_policy_ratio", "sequence_level_importance_ratios", "ratio_clip_c"):
                if getattr(self, name):
                    raise ValueError(f"disable_ppo_ratio leaves no ratio for {name} to act on; drop one of the two")
        return self


class OptimizerConfig(Section):
    """AdamW and the schedule of its learning rate. Steps are versions."""

    lr: Annotated[float, Field(gt=0)] = 5.0e-6
    """Highest learning rate."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at the end of the decay."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled; biases and norms have none."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    adam_eps: Annotated[float, Field(gt=0)] = 1.0e-8
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    """Bound of the gradient's norm; 0: none."""
    lr_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Versions of linear warm-up; the first one trains with lr / lr_warmup_steps."""
    lr_decay_steps: Annotated[int, Field(ge=1)] | None = None
    """Versions until min_lr, warm-up included; null: the run's last step."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "constant"

    @model_validator(mode="after")
    def _schedule(self) -> OptimizerConfig:
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr {self.min_lr} exceeds lr {self.lr}")
        if self.lr_decay_steps is not None and self.lr_warmup_steps >= self.lr_decay_steps:
            raise ValueError(f"lr_warmup_steps {self.lr_warmup_steps} leave nothing of lr_decay_steps {self.lr_decay_steps}")
        return self


class LearnerConfig(Section):
    """The Megatron side."""

    nproc: Annotated[int, Field(ge=1)] = 1
    """Processes that torchrun starts, on all machines together."""
    tensor_model_parallel_size: Annotated[int, Field(ge=1)] = 1
    pipeline_model_parallel_size: Annotated[int, Field(ge=1)] = 1
    context_parallel_size: Literal[1] = 1
    """Long sequences are not split over processes yet."""
    sequence_parallel: bool = False
    """Split norms and dropouts over the tensor-parallel processes too."""
    train_global_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Trajectories an optimizer step; null: all of the version, in one step."""
    train_micro_batch_size: Annotated[int, Field(ge=1)] = 64
    """Trajectories a forward and backward pass of one process."""
    logprob_micro_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Trajectories a forward pass without gradient; null: train_micro_batch_size."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    use_distributed_optimizer: bool = False
    """Split the optimizer's state over the data-parallel processes."""
    sequence_packing: Literal[False] = False
    """Trajectories are sorted by length and padded; packing is not built yet."""
    deterministic: bool = True
    """Use deterministic algorithms only, so that a step can be replayed bit for bit."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """Threads of torch in each process; null: what the environment says (OMP_NUM_THREADS)."""
    rank_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """A process that hears nothing from rank 0 for so long exits; one that is stopped for three quarters of it is killed. Must
    exceed refit.phase_timeout_s."""

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

    save_period: Annotated[int, Field(ge=1)] = 10
    """Versions from one checkpoint to the next; the last version always has one."""
    keep: Annotated[int, Field(ge=1)] | None = None
    """Newest checkpoints that are kept, and the topics that go with them; null: all."""
    async_save: bool = False
    """Training goes on while a copy of the state is written; takes memory for the copy in every process."""
    hf_export_at_end: bool = True
    """Write the last version as a Hugging Face checkpoint too."""


class LoggerConfig(Section):
    """Where metrics go, besides `metrics.jsonl` and the metrics topic."""

    tensorboard: bool = True
    wandb: bool = False
    wandb_project: str | None = None
    """Project of Weights & Biases; null: the run's name."""


LEARNER_SECTIONS: dict[str, type[Section]] = {
    "loss_fn": LossFnConfig,
    "learner": LearnerConfig,
    "checkpointing": CheckpointingConfig,
    "logger": LoggerConfig,
}
