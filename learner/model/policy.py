"""The policy on one rank: a Megatron model with its optimizer, behind the few things that the learner's loop does with it.

Every public method is collective: all ranks call it, in the same order, with their own share of the batch. Determinism: no random
number is drawn after the weights are loaded; micro batches are a pure function of the batch (stable sort by length).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from learner.grpo.batch import PAD_TO, TrainBatch, round_up
from learner.grpo.inputs import Counts, LossInputs
from learner.grpo.losses.find import find_loss
from learner.grpo.metrics import MAX_AGE, TOKEN_MEANS, age_sums, finish, merge, token_sums
from learner.grpo.objective import objective
from learner.model import optimizer, parallel, spec, state
from learner.model.checkpoint import convert, hf
from learner.model.families.forms import Sizes
from learner.model.layers import cpu_compat
from learner.model.logprob import RowSelector, Wanted
from learner.model.megatron import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    Float16Module,
    finalize_model_grads,
    get_forward_backward_func,
    mpu,
)
from learner.model.micro_batches import micro_batches, optimizer_shares
from schemas.config.learner import LearnerConfig
from schemas.config.loss import LossConfig
from schemas.config.model import ModelConfig
from schemas.failpoints import reach
from schemas.model_files import model_folder

LossFunc = Callable[..., Any]


class Policy:
    """One per rank; `torch.distributed` is initialised by the caller (gloo on CPU, NCCL on GPU).

    Raises:
        ConfigError: a model that cannot be converted, or a world size other than `learner.nproc`.
    """

    def __init__(
        self,
        model: ModelConfig,
        learner: LearnerConfig,
        loss_fn: LossConfig,
        *,
        seed: int,
        total_steps: int,
        temperature: float = 1.0,
    ) -> None:
        """
        Args:
            seed: of the random generators; nothing is drawn from them, they are part of the saved state.
            total_steps: last version of the run, for the learning rate's decay.
            temperature: what rollouts are sampled with; logits are divided by it in training and in `logprobs`.
        """
        _configure_torch(learner)
        # After all imports of megatron, which it looks through, and before megatron makes anything.
        cpu_compat.enable()
        parallel.initialize(learner, seed)
        self._learner, self._loss_fn, self._temperature = learner, loss_fn, temperature
        self._surrogate = find_loss(loss_fn)
        self._device = parallel.device()
        self._dtype: torch.dtype = getattr(torch, model.dtype)
        self.folder = model_folder(model.path)
        self._family = hf.load_family(self.folder)
        self._hf = hf.load_config(self.folder, self._family)
        self._config = spec.transformer_config(self._family, self._hf, learner, self._dtype)
        self._bare = spec.build(self._family, self._hf, self._config).to(self._device)
        self._layout = self._make_layout()
        with hf.Weights(self.folder) as weights:
            self._index = [(name, weights.shape(name)) for name in convert.tensor_names(self._layout.weights)]
            convert.load_weights(self._bare, weights, self._layout)
        # Under sequence parallelism the output layer's input is a part of the sequence until the layer itself gathers it: rows
        # cannot be picked before that.
        self._selector = None
        if mpu.is_pipeline_last_stage() and not learner.sequence_parallel:
            self._selector = RowSelector(self._bare.output_layer)
        self._model = self._wrap()
        self._optimizer = optimizer.build(self._model, learner, self._dtype)
        self._scheduler = optimizer.schedule(self._optimizer, learner.optimizer, total_steps)
        # Taken before anything is trained or loaded from a checkpoint: a resumed run has the reference of its first day.
        self._reference = self._weights_copy() if loss_fn.reference_policy_kl_penalty > 0 else None
        self._run = get_forward_backward_func()
        self._last_stage: bool = mpu.is_pipeline_last_stage()

    @property
    def dp_rank(self) -> int:
        return int(mpu.get_data_parallel_rank())

    @property
    def dp_size(self) -> int:
        return int(mpu.get_data_parallel_world_size())

    @property
    def vocab_size(self) -> int:
        return int(self._hf.vocab_size)

    def tensor_index(self) -> list[tuple[str, tuple[int, ...]]]:
        """(Hugging Face name, shape) of what `export` yields, in its order. A tied head is not among them."""
        return list(self._index)

    def logprobs(self, batch: TrainBatch) -> Tensor:
        """float32 [B, S] of the current policy, without gradient: on generated tokens the log-probability given what stands
        before them, 0 elsewhere. Bit for bit what `train_step` computes when both micro batch sizes are the same."""
        # The same cut as in training: another padded length would change the last bits of the attention's sums.
        size = self._learner.logprob_micro_batch_size or self._learner.train_micro_batch_size
        out = torch.zeros(batch.tokens.shape, dtype=torch.float32, device=self._device)
        pieces = list(micro_batches(batch, size))
        results = self._forward([piece.to(self._device) for _, piece in pieces], self._temperature)
        for (index, piece), values in zip(pieces, results, strict=True):
            out[index.to(self._device), : piece.tokens.shape[1]] = values
        return out

    def reference_logprobs(self, batch: TrainBatch) -> Tensor:
        """`logprobs` of the checkpoint that the run started from.

        Raises:
            ValueError: `loss_fn.reference_policy_kl_penalty` is 0, so its weights were not kept.
        """
        if self._reference is None:
            raise ValueError("reference weights are kept only when loss_fn.reference_policy_kl_penalty is above 0")
        # The weights are swapped inside one model: a second one would need its own buffers for gradients and communication. The
        # copies have the model's dtype, so that what comes back is what was there, bit for bit.
        current = self._weights_copy()
        self._set_weights(self._reference)
        try:
            return self.logprobs(batch)
        finally:
            self._set_weights(current)

    def train_step(self, batch: TrainBatch) -> dict[str, float]:
        """Train one version on this rank's share of it; the metrics are those of the whole version, the same on all ranks.

        The previous policy is the one at the start of the call. With a single optimizer step that is the current one, so its
        log-probabilities come from the training pass itself. A gradient that is not finite changes no weight: `skipped_step`
        counts it, and the schedule advances all the same.

        Raises:
            ValueError: `learner.train_global_batch_size` does not cut the batch evenly, or contradicts `force_on_policy_ratio`.
        """
        cfg = self._loss_fn
        reference = self.reference_logprobs(batch) if self._reference is not None else None
        shares = optimizer_shares(len(batch), self._learner.train_global_batch_size, self.dp_size)
        if len(shares) > 1 and cfg.force_on_policy_ratio:
            raise ValueError(
                "force_on_policy_ratio allows one optimizer step a version; set learner.train_global_batch_size to null"
            )
        # All of it before the first step: from the second step on the weights are no longer the previous policy's.
        prev = self.logprobs(batch) if len(shares) > 1 else None
        lr = float(self._optimizer.param_groups[0]["lr"])
        steps = [self._optimizer_step(batch, rows, prev, reference) for rows in shares]
        self._scheduler.step(1)
        metrics = merge(steps)
        # Counts add up over the steps of a version; `merge` has taken their mean.
        for name in ("global_valid_seqs", "global_valid_toks", "num_valid_samples", "skipped_step"):
            metrics[name] = sum(one[name] for one in steps)
        return {**metrics, "lr": lr}

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, full tensor in the model's dtype), in the order of `tensor_index`, on every rank.

        The gather of a tensor is complete before it is yielded. Read only; all ranks must go through it to its end.
        """
        yield from convert.export(self._bare, self._layout)

    def probe_logprobs(self, token_ids: list[int]) -> list[float]:
        """Log-probabilities of tokens 1..n-1, each given those before it, at temperature 1: what an engine answers about the same
        tokens after a transfer."""
        length, width = len(token_ids), round_up(len(token_ids), PAD_TO)
        tokens, mask = torch.zeros(1, width, dtype=torch.int64), torch.zeros(1, width)
        tokens[0, :length], mask[0, 1:length] = torch.tensor(token_ids, dtype=torch.int64), 1.0
        zeros = torch.zeros(1, width)
        one = torch.ones(1)
        counts = torch.full((1,), length, dtype=torch.int64)
        probe = TrainBatch(tokens, mask, one, zeros, one, torch.zeros_like(tokens), counts, torch.zeros_like(counts))
        values: list[float] = self._forward([probe.to(self._device)], 1.0)[0][0, 1:length].tolist()
        return values

    def state_digest(self) -> str:
        """sha256 over float32 weights, moments, steps and schedule, the same on all ranks. One layout and history give one."""
        replica = 0 if self._learner.use_distributed_optimizer else self.dp_rank
        return optimizer.state_digest(self._optimizer, self._scheduler, replica=replica)

    def save(self, folder: Path) -> None:
        """Write model, optimizer, schedule and random state below `folder`."""
        state.save(folder, self._bare, self._optimizer, self._scheduler)

    def begin_save(self, folder: Path, *, background: bool) -> state.Writing:
        """`save` in two halves. In the background: the state is copied, and may change, before it is written."""
        return state.begin(folder, self._bare, self._optimizer, self._scheduler, background=background)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; the layout may be another one.

        Raises:
            WeirError: the checkpoint is of another model, or its files cannot be read.
        """
        state.load(folder, self._bare, self._optimizer, self._scheduler)

    def save_hf(self, folder: Path) -> None:
        """Write a Hugging Face checkpoint with config and tokenizer of the one that the run started from. Replaces `folder`.

        Raises:
            OSError: on rank 0; a full disk.
        """
        rank = dist.get_rank()
        tensors = {}
        # Ranks that write nothing go through it too: every tensor of it is gathered from all of them.
        for name, tensor in self.export():
            if rank == 0:
                tensors[name] = tensor.cpu().clone()
        if rank == 0:
            hf.save(folder, tensors, self.folder, self._dtype)
        dist.barrier()

    def _make_layout(self) -> convert.Layout:
        config = self._config
        sizes = Sizes(
            queries=config.num_attention_heads,
            groups=config.num_query_groups,
            width=config.kv_channels,
            vocab=self.vocab_size,
            rank=mpu.get_tensor_model_parallel_rank(),
            ranks=mpu.get_tensor_model_parallel_world_size(),
        )
        return convert.Layout(
            weights=self._family.weights(self._hf),
            sizes=sizes,
            tp_group=mpu.get_tensor_model_parallel_group(),
            pp_rank=mpu.get_pipeline_model_parallel_rank(),
            pp_size=mpu.get_pipeline_model_parallel_world_size(),
            pp_group=mpu.get_pipeline_model_parallel_group(),
        )

    def _wrap(self) -> Any:
        """Data parallelism around the model, and for bfloat16 the conversion of what goes in and comes out."""
        inner = Float16Module(self._config, self._bare) if self._dtype == torch.bfloat16 else self._bare
        ddp = DistributedDataParallelConfig(
            # Gradients of many micro batches add up in this buffer; in bfloat16 the small ones would be lost.
            grad_reduce_in_fp32=True,
            # Overlapped, a reduction starts with each micro batch's backward pass, unless megatron is given a `no_sync_func`.
            overlap_grad_reduce=False,
            use_distributed_optimizer=self._learner.use_distributed_optimizer,
        )
        wrapped = DistributedDataParallel(self._config, ddp, inner)
        # After the last micro batch: reduces over data-parallel ranks, adds up norms under sequence parallelism and a tied
        # embedding over stages, and divides by the global token count. Without it each rank trains its own model.
        self._config.finalize_model_grads_func = finalize_model_grads
        self._config.grad_scale_func = None  # neither float32 nor bfloat16 needs the loss scaled
        return wrapped

    def _weights_copy(self) -> list[Tensor]:
        # In host memory: the reference is needed once a version, and would be a second model on the GPU all the time.
        return [parameter.detach().cpu().clone() for parameter in self._bare.parameters()]

    def _set_weights(self, weights: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._bare.parameters(), weights, strict=True):
                parameter.copy_(value)

    def _optimizer_step(self, batch: TrainBatch, rows: Tensor, prev: Tensor | None, ref: Tensor | None) -> dict[str, float]:
        share = batch.rows(rows, batch.tokens.shape[1])
        counts = self._counts(share)
        pieces = []
        for index, piece in micro_batches(share, self._learner.train_micro_batch_size):
            cut = (rows[index].to(self._device), slice(0, piece.tokens.shape[1]))
            here = piece.to(self._device)
            pieces.append((here, None if prev is None else prev[cut], None if ref is None else ref[cut]))
        # Two places: the buffer that passes add into, and the gradients of float32 copies that the optimizer makes from it.
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        sums = torch.zeros(len(TOKEN_MEANS), dtype=torch.float64, device=self._device)
        by_age = torch.zeros(MAX_AGE + 1, 2, dtype=torch.float64, device=self._device)
        worst = torch.zeros(MAX_AGE + 1, dtype=torch.float64, device=self._device)
        work = [(piece, partial(self._loss, piece, p, r, counts)) for piece, p, r in pieces]
        for of_sums, of_ages, of_worst in self._passes(work, forward_only=False):
            sums, by_age, worst = sums + of_sums, by_age + of_ages, torch.maximum(worst, of_worst)
        reach("learner.forward")
        applied, norm = optimizer.step(self._optimizer, self._learner.optimizer.clip_grad)
        reach("learner.optimizer")
        # Only the last stage has computed any. Summed over its data-parallel ranks first, then handed to the stages before it.
        for total in (sums, by_age):
            parallel.from_last_stage(parallel.sum_over_data_parallel(total))
        parallel.from_last_stage(parallel.max_over_data_parallel(worst))
        metrics = finish(sums, by_age, worst, counts)
        valid = float(counts.sequences)
        return {
            **metrics,
            "grad_norm": norm,
            "skipped_step": 0.0 if applied else 1.0,
            "global_valid_seqs": valid,
            "global_valid_toks": float(counts.tokens),
            "num_valid_samples": valid,
        }

    def _counts(self, batch: TrainBatch) -> Counts:
        # A float32 stops counting at 2^24, which a large batch of long trajectories reaches.
        tokens = int((batch.token_mask * batch.sample_mask[:, None]).sum(dtype=torch.float64))
        totals = torch.tensor([tokens, int(batch.sample_mask.sum(dtype=torch.float64))], dtype=torch.int64, device=self._device)
        return Counts(*(int(n) for n in parallel.sum_over_data_parallel(totals).tolist()))

    def _loss(self, piece: TrainBatch, prev: Tensor | None, ref: Tensor | None, counts: Counts, curr: Tensor) -> Any:
        """Megatron's triple: scalar to go back from, tokens to divide by, what to report."""
        prev = curr.detach() if prev is None else prev
        inputs = LossInputs(prev, piece.gen_logprobs, ref, piece.advantages, piece.token_mask, piece.sample_mask)
        terms = objective(self._surrogate, curr, inputs, counts, self._loss_fn)
        sums = token_sums(curr, inputs, terms, counts, self._loss_fn)
        by_age, worst = age_sums(prev, piece.gen_logprobs, inputs.mask_BT, piece.ages)
        # megatron adds these up in its own int32 and divides the gradient by the total.
        tokens = inputs.mask_BT.sum(dtype=torch.float64).to(torch.int32)
        return terms.objective, tokens, (sums, by_age, worst)

    def _forward(self, pieces: list[TrainBatch], temperature: float) -> list[Tensor]:
        """Log-probabilities [b, s] of each piece, on all pipeline stages."""
        work: list[tuple[TrainBatch, LossFunc]] = [(piece, lambda curr: curr) for piece in pieces]
        with torch.no_grad():
            found = list(self._passes(work, forward_only=True, temperature=temperature))
        if not self._last_stage:
            found = [torch.empty(piece.tokens.shape, device=self._device) for piece in pieces]
        return [parallel.from_last_stage(values.detach()) for values in found]

    def _passes(
        self, work: Sequence[tuple[TrainBatch, LossFunc]], *, forward_only: bool, temperature: float | None = None
    ) -> list[Any]:
        """Run all micro batches through the pipeline. Each is given with a function of its log-probabilities [b, s]; what those
        report comes back on the last stage, an empty list on the others."""
        heat = self._temperature if temperature is None else temperature

        def forward(iterator: Iterator[tuple[TrainBatch, LossFunc]], model: Any) -> tuple[Tensor, LossFunc]:
            piece, report = next(iterator)
            wanted = Wanted(piece.tokens, piece.token_mask)
            if self._selector is not None:
                self._selector.arm(wanted.rows)
            positions = torch.arange(piece.tokens.shape[1], device=self._device).expand_as(piece.tokens)
            # No attention mask: `SdpaCoreAttention` is causal by itself.
            return model(piece.tokens, positions, None), partial(judge, wanted, report)

        def judge(wanted: Wanted, report: LossFunc, logits: Tensor, non_loss_data: bool = False) -> Any:
            cut = self._selector is not None
            return report(wanted.logprobs(logits, cut=cut, temperature=heat, vocab_size=self.vocab_size))

        results: list[Any] = self._run(
            forward_step_func=forward,
            data_iterator=iter(work),
            model=[self._model],
            num_microbatches=len(work),
            # Bounds only: with several stages the real shape of each micro batch is sent ahead of it.
            seq_length=max(piece.tokens.shape[1] for piece, _ in work),
            micro_batch_size=max(len(piece) for piece, _ in work),
            forward_only=forward_only,
            # Without a loss megatron would take what is reported apart as (loss, tokens, report).
            collect_non_loss_data=forward_only,
        )
        return results


def _configure_torch(learner: LearnerConfig) -> None:
    # megatron calls collectives by names that this torch renames.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.", category=FutureWarning)
    if learner.threads is not None:
        torch.set_num_threads(learner.threads)
    if learner.deterministic:
        # cuBLAS reads it when it is first used; without it torch refuses matrix products in deterministic mode.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
