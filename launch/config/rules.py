"""Rules between the sections of a run's file, and between the file and this machine. Checked all at once, before anything starts.

Each rule is a small function that yields `Problem`s. Those of `ERRORS` keep the run from starting; those of `WARNINGS` are only
shown.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from pathlib import Path

from broker_config.clients.security import security_settings
from launch.config.model_facts import ModelFacts, looks_like_hub_name
from learner.checkpoint.fork import find_fork
from learner.model.families import unknown_family
from producer.data import check_data
from producer.engine.vllm_arguments import engine_arguments
from schemas.config.config import Config
from schemas.config.loss import CustomLossConfig
from schemas.errors import ConfigError, Problem
from schemas.importing import look_for_named
from schemas.weights.transports.find import find_transport

# Head sizes of vLLM's attention on CPUs; the kernels are compiled for these.
CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the rules need to know about this machine."""

    gpu: bool
    bootstrap: str | None
    """KAFKA_BOOTSTRAP_SERVERS."""

    @classmethod
    def here(cls) -> Machine:
        gpu = Path("/dev/nvidiactl").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
        return cls(gpu=gpu, bootstrap=os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or None)


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What a rule looks at. `resuming`: the run's folder is expected to exist."""

    config: Config
    machine: Machine
    resuming: bool = False
    model: ModelFacts | None = None
    """None while the model is not on this machine."""


Rule = Callable[[RuleContext], Iterator[Problem]]


def batch_divides(c: RuleContext) -> Iterator[Problem]:
    """N groups over the data-parallel processes; N * G trajectories over optimizer steps and micro-batches."""
    grpo, learner = c.config.grpo, c.config.learner
    n, g = grpo.num_prompts_per_step, grpo.num_generations_per_prompt
    dp, micro = learner.data_parallel_size, learner.train_micro_batch_size
    batch = learner.train_global_batch_size or n * g
    if learner.train_global_batch_size is not None:
        if (n * g) % batch:
            why = f"does not divide the version's {n} x {g} = {n * g} trajectories"
            yield Problem("learner.train_global_batch_size", batch, why, _use(_divisors_near(n * g, batch)))
        elif batch % (dp * micro):
            why = f"not divisible by data parallel {dp} x micro-batch {micro}"
            yield Problem("learner.train_global_batch_size", batch, why, _use(_multiples_near(dp * micro, batch)))
        return
    if n % dp:
        why = f"not divisible by data-parallel size {dp}"
        yield Problem("grpo.num_prompts_per_step", n, why, _use(_multiples_near(dp, n)))
    elif (n * g) % (dp * micro):
        step = lcm(dp, dp * micro // gcd(dp * micro, g))
        fits = _divisors_near(n * g // dp, micro)
        why = f"{n} x {g} trajectories are not divisible by data parallel {dp} x micro-batch {micro}"
        fix = f"{_use(_multiples_near(step, n))}, or set learner.train_micro_batch_size to {_either(fits)}"
        yield Problem("grpo.num_prompts_per_step", n, why, fix)


def lengths_fit(c: RuleContext) -> Iterator[Problem]:
    new, total = c.config.generation.max_new_tokens, c.config.model.max_total_sequence_length
    if new >= total:
        why = f"leaves no room for a prompt in model.max_total_sequence_length {total}"
        yield Problem("generation.max_new_tokens", new, why, f"use at most {total - 1}, or raise the sequence length")


def record_fits(c: RuleContext) -> Iterator[Problem]:
    """The largest group, uncompressed: 9 bytes a token (id, mask, log-probability) and a few hundred a trajectory."""
    total, g = c.config.model.max_total_sequence_length, c.config.grpo.num_generations_per_prompt
    mib = g * (9 * total + 512) / (1 << 20)
    limit = c.config.kafka.max_record_mib
    if mib > limit:
        why = f"a group of {g} trajectories of {total} tokens takes up to {mib:.0f} MiB"
        yield Problem("kafka.max_record_mib", limit, why, "raise it (at most 90), or lower the length or the group size")


def validation_has_data(c: RuleContext) -> Iterator[Problem]:
    grpo = c.config.grpo
    if c.config.data.validation is not None:
        return
    for key in ("val_period", "val_at_start", "val_at_end"):
        value = getattr(grpo, key)
        if value:
            yield Problem(f"grpo.{key}", value, "data.validation is null", "set data.validation, or switch this off")


def validation_is_used(c: RuleContext) -> Iterator[Problem]:
    grpo = c.config.grpo
    if c.config.data.validation is not None and not (grpo.val_period or grpo.val_at_start or grpo.val_at_end):
        why = "no validation is scheduled"
        yield Problem("data.validation", c.config.data.validation, why, "set grpo.val_period or grpo.val_at_end")


def group_gives_advantages(c: RuleContext) -> Iterator[Problem]:
    grpo = c.config.grpo
    if grpo.num_generations_per_prompt == 1:
        why = "one trajectory is its own baseline: every advantage is 0"
        yield Problem("grpo.num_generations_per_prompt", 1, why, "use 2 or more")


def on_policy_ratio(c: RuleContext) -> Iterator[Problem]:
    learner, grpo = c.config.learner, c.config.grpo
    whole = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
    batch = learner.train_global_batch_size
    if c.config.loss_fn.force_on_policy_ratio and batch is not None and batch < whole:
        why = f"a version takes {whole // batch} optimizer steps (learner.train_global_batch_size {batch})"
        yield Problem("loss_fn.force_on_policy_ratio", True, why, "set train_global_batch_size to null, or switch this off")


def loss_is_there(c: RuleContext) -> Iterator[Problem]:
    if isinstance(c.config.loss_fn, CustomLossConfig):
        yield from look_for_named(c.config.loss_fn.name, "loss_fn.name")


def age_is_corrected(c: RuleContext) -> Iterator[Problem]:
    age = c.config.grpo.max_trajectory_age_steps
    if age > 1 and not c.config.loss_fn.use_importance_sampling_correction:
        why = "old trajectories without loss_fn.use_importance_sampling_correction make training unstable"
        yield Problem("grpo.max_trajectory_age_steps", age, why, "switch the correction on, or use 0 or 1")


def age_within_run(c: RuleContext) -> Iterator[Problem]:
    grpo = c.config.grpo
    if grpo.max_trajectory_age_steps >= grpo.max_num_steps > 1:
        why = f"the run has {grpo.max_num_steps} steps: all of them may be sampled from the first weights"
        yield Problem("grpo.max_trajectory_age_steps", grpo.max_trajectory_age_steps, why, "use a smaller age")


def capacity_is_used(c: RuleContext) -> Iterator[Problem]:
    grpo, producer = c.config.grpo, c.config.producer
    capacity = producer.count * producer.max_groups_in_flight
    open_slots = grpo.num_prompts_per_step * (grpo.max_trajectory_age_steps + 1)
    if capacity > open_slots:
        why = f"{producer.count} producers hold {capacity} groups, but at most {open_slots} slots are open at a time"
        fix = f"use {max(1, open_slots // producer.count)}, fewer producers, or more prompts a step"
        yield Problem("producer.max_groups_in_flight", producer.max_groups_in_flight, why, fix)


def producers_have_partitions(c: RuleContext) -> Iterator[Problem]:
    count, partitions = c.config.producer.count, c.config.kafka.request_partitions
    if count > partitions:
        why = f"each of {count} producers reads one partition of the requests topic"
        yield Problem("kafka.request_partitions", partitions, why, f"use at least {count}; twice that lets others join")


def rank_timeout_is_longer(c: RuleContext) -> Iterator[Problem]:
    rank, phase = c.config.learner.rank_timeout_s, c.config.refit.phase_timeout_s
    if rank <= phase:
        why = f"ranks would give up before a refit phase does (refit.phase_timeout_s {phase:g})"
        yield Problem("learner.rank_timeout_s", rank, why, f"use more than {phase:g}, for example {2 * phase:g}")


def pauses_grow(c: RuleContext) -> Iterator[Problem]:
    first, longest = c.config.launch.restart.backoff_s, c.config.launch.restart.max_backoff_s
    if longest < first:
        why = f"the longest pause is shorter than the first (launch.restart.backoff_s {first:g})"
        yield Problem("launch.restart.max_backoff_s", longest, why, f"use at least {first:g}")


def model_is_there(c: RuleContext) -> Iterator[Problem]:
    model = c.config.model
    path = Path(model.path)
    if c.model is not None or model.build is not None:
        return
    if path.is_dir():
        yield Problem("model.path", model.path, "the folder has no config.json", "give a Hugging Face checkpoint folder")
    elif path.exists():
        yield Problem("model.path", model.path, "is a file", "give the folder that holds config.json and the weights")
    elif not looks_like_hub_name(model.path):
        yield Problem("model.path", model.path, "no such folder", "give a checkpoint folder, a hub name, or model.build")


def model_family_is_known(c: RuleContext) -> Iterator[Problem]:
    """The learner checks the same, and the options of the model, when it starts."""
    problem = unknown_family(c.model.model_type, c.config.model.path) if c.model is not None else None
    if problem is not None:
        yield problem


def model_fits(c: RuleContext) -> Iterator[Problem]:
    """The checkpoint's own config against what the run asks of it."""
    if c.model is None:
        return
    config, m = c.config, c.model
    longest, limit = config.model.max_total_sequence_length, m.max_position_embeddings
    if limit is not None and longest > limit:
        why = f"beyond the model's max_position_embeddings {limit}"
        yield Problem("model.max_total_sequence_length", longest, why, f"use at most {limit}")
    tp, pp = config.learner.tensor_model_parallel_size, config.learner.pipeline_model_parallel_size
    for what, count in (("attention heads", m.num_attention_heads), ("key-value heads", m.num_key_value_heads)):
        if count is not None and count % tp:
            yield Problem(
                "learner.tensor_model_parallel_size", tp, f"does not divide {count} {what}", _use(_divisors_near(count, tp))
            )
    if m.num_hidden_layers is not None and m.num_hidden_layers % pp:
        why = f"does not divide {m.num_hidden_layers} layers"
        yield Problem("learner.pipeline_model_parallel_size", pp, why, _use(_divisors_near(m.num_hidden_layers, pp)))
    if m.quantized:
        yield Problem(
            "model.path", config.model.path, "the checkpoint is quantized", "training needs plain weights; convert it first"
        )


def head_dim_is_supported(c: RuleContext) -> Iterator[Problem]:
    if c.machine.gpu or c.model is None or c.config.producer.engine != "vllm":
        return
    head = c.model.head_dim
    if head is not None and head not in CPU_HEAD_DIMS:
        why = f"vLLM has no attention on CPUs for its head_dim {head}"
        yield Problem("model.path", c.config.model.path, why, "use one with head_dim " + ", ".join(map(str, CPU_HEAD_DIMS)))


def tokenizer_is_there(c: RuleContext) -> Iterator[Problem]:
    name = c.config.model.tokenizer
    where = Path(name) if name is not None else Path(c.config.model.path)
    if name is None and c.model is None:
        return
    if where.is_dir():
        if not any((where / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
            yield Problem("model.tokenizer", str(where), "the folder has no tokenizer", "give a folder or hub name that has one")
    elif not looks_like_hub_name(str(where)):
        yield Problem("model.tokenizer", str(where), "no such folder", "give a folder or hub name with a tokenizer")


def engine_arguments_are_free(c: RuleContext) -> Iterator[Problem]:
    try:
        engine_arguments(c.config.model, c.config.generation, c.config.producer, on_gpu=c.machine.gpu)
    except ConfigError as error:
        yield from error.problems


def backend_is_possible(c: RuleContext) -> Iterator[Problem]:
    backend = c.config.refit.backend
    if backend != "auto" and find_transport(backend).needs_gpu and not c.machine.gpu:
        yield Problem("refit.backend", backend, "this machine has no GPU", "use auto or gloo")


def broker_can_do_it(c: RuleContext) -> Iterator[Problem]:
    kafka = c.config.kafka
    if kafka.bootstrap_servers or c.machine.bootstrap:
        return
    if kafka.replication_factor > 1:
        why = "the local broker is a single node"
        yield Problem("kafka.replication_factor", kafka.replication_factor, why, "use 1, or set kafka.bootstrap_servers")
    if kafka.security.protocol != "PLAINTEXT":
        why = "the local broker listens on loopback without a login"
        yield Problem("kafka.security.protocol", kafka.security.protocol, why, "use PLAINTEXT, or set kafka.bootstrap_servers")


def secrets_are_readable(c: RuleContext) -> Iterator[Problem]:
    try:
        security_settings(c.config.kafka.security)
    except ConfigError as error:
        yield from error.problems


def run_id_is_free(c: RuleContext) -> Iterator[Problem]:
    if c.resuming or c.config.run.id is None:
        return
    if (c.config.folder / "config.yaml").exists():
        why = f"its folder {c.config.folder} exists"
        yield Problem("run.id", c.config.run.id, why, "leave run.id out, choose another, or use --resume")


def fork_is_possible(c: RuleContext) -> Iterator[Problem]:
    """The learner checks the same when it starts."""
    if c.resuming:
        return
    try:
        find_fork(c.config.run, c.config.model)
    except ConfigError as error:
        yield from error.problems


def loggers_are_installed(c: RuleContext) -> Iterator[Problem]:
    for name in ("tensorboard", "wandb"):
        if getattr(c.config.logger, name) and importlib.util.find_spec(name) is None:
            yield Problem(f"logger.{name}", True, f"the package {name} is not installed", f"install {name}, or switch it off")


def data_is_usable(c: RuleContext) -> Iterator[Problem]:
    model = c.config.model
    tokenizer = Path(model.tokenizer or model.path) / "tokenizer.json"
    found = tokenizer if tokenizer.is_file() else None
    yield from check_data(c.config.data, c.config.environment, found, model.max_total_sequence_length - 1)


def checkpoints_within_run(c: RuleContext) -> Iterator[Problem]:
    period, steps = c.config.checkpointing.save_period, c.config.grpo.max_num_steps
    if period > steps > 1:
        why = f"the run has {steps} steps: only the first and the last version are saved"
        yield Problem("checkpointing.save_period", period, why, f"use {max(1, steps // 4)} to lose less when it is stopped")


ERRORS: Sequence[Rule] = (
    lengths_fit,
    record_fits,
    batch_divides,
    on_policy_ratio,
    loss_is_there,
    rank_timeout_is_longer,
    pauses_grow,
    validation_has_data,
    model_is_there,
    model_family_is_known,
    model_fits,
    head_dim_is_supported,
    tokenizer_is_there,
    engine_arguments_are_free,
    producers_have_partitions,
    backend_is_possible,
    broker_can_do_it,
    secrets_are_readable,
    run_id_is_free,
    fork_is_possible,
    loggers_are_installed,
    data_is_usable,
)

WARNINGS: Sequence[Rule] = (
    group_gives_advantages,
    age_is_corrected,
    age_within_run,
    capacity_is_used,
    checkpoints_within_run,
    validation_is_used,
)


def _multiples_near(step: int, value: int) -> list[int]:
    below = value // step * step
    return [n for n in (below, below + step) if n > 0]


def _divisors_near(whole: int, value: int) -> list[int]:
    below = [d for d in range(1, value + 1) if whole % d == 0]
    above = next((d for d in range(value + 1, whole + 1) if whole % d == 0), None)
    return below[-1:] + ([above] if above is not None else [])


def _either(values: Sequence[int]) -> str:
    return " or ".join(str(value) for value in values)


def _use(values: Sequence[int]) -> str:
    return f"use {_either(values)}"
