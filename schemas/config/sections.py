"""The configuration sections that more than one part needs. Sections of one part live with that part.

Keys keep NeMo RL's names where the thing is the same. Units stand in the name (`_s`, `_mib`). An unknown key is an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from schemas.identity import LATEST

# Every top-level section of a run's file, whoever reads it. A section missing here is an unknown key.
SECTIONS = (
    "run",
    "model",
    "data",
    "environment",
    "grpo",
    "loss_fn",
    "generation",
    "producer",
    "learner",
    "dispatch",
    "refit",
    "kafka",
    "checkpointing",
    "logger",
    "launch",
)

# Sections that a producer and the learner must agree on: reports carry them, and a mismatch is refused naming the key.
AGREED_SECTIONS = ("model", "data", "environment", "grpo", "generation", "refit")

# Keys inside the agreed sections that may differ from process to process: they say where or how long, not what is sampled.
LOCAL_KEYS = frozenset(
    {
        "model.path",
        "model.tokenizer",
        "model.build",
        "data.train",
        "data.validation",
        "refit.host",
        "grpo.max_num_steps",
        "grpo.max_num_epochs",
        "grpo.val_period",
        "grpo.val_at_start",
        "grpo.val_at_end",
        "grpo.max_val_samples",
        "grpo.val_timeout_s",
        "grpo.val_temperature",
    }
)


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ForkConfig(Section):
    """The checkpoint of another run that a run starts from."""

    run: str | None = None
    """A run's id (in `run.dir`) or folder, or a dump, whose checkpoint this run starts from; null: start from `model.path`."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Version of that checkpoint."""

    @model_validator(mode="after")
    def _both(self) -> ForkConfig:
        if (self.run is None) != (self.step is None):
            raise ValueError("run and step belong together; give both, or neither")
        return self


class RunConfig(Section):
    """What the run is called and where its files go."""

    name: str = Field("weir", pattern=r"^[a-z0-9-]{1,48}$")
    """What a person calls the run; `launch/run_cluster.sh` mints `id` from it."""
    id: str | None = Field(None, pattern=r"^[a-z0-9-]{1,64}$")
    """Prefix of all topics of the run; not `latest`, the link to the newest one. Required when a process is started by hand."""
    dir: str = "runs"
    """Folder under which `<id>/` holds config, logs, metrics and checkpoints."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the draws of prompts and of the learner's random generators."""
    fork_from: ForkConfig = Field(default_factory=ForkConfig)

    @field_validator("id")
    @classmethod
    def _not_the_link(cls, run_id: str | None) -> str | None:
        if run_id == LATEST:
            raise ValueError(f"{LATEST} is the link to the newest run's folder, no run's own name")
        return run_id


class ModelConfig(Section):
    """The policy: a Hugging Face checkpoint folder."""

    path: str
    """A local Hugging Face checkpoint folder, or a hub name that transformers can load."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer; the model's own when null."""
    build: Literal["tiny", "smollm2"] | None = None
    """A recipe of `launch/models/` that makes `path` on this machine when it is missing."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Numbers that the engine computes with, that are sent at a refit, and that the learner's forward pass uses."""
    max_total_sequence_length: Annotated[int, Field(ge=2)] = 1024
    """Longest prompt plus completion, in tokens."""


class DataConfig(Section):
    """Where prompts come from, and which keys of a row hold what."""

    train: str
    """A .jsonl or .parquet file, a Hugging Face dataset name or folder, or `environment` for the environment's generator."""
    validation: str | None = None
    """Same, for validation; null switches validation off."""
    split: str = "train"
    """Split of a Hugging Face dataset that `train` names."""
    validation_split: str = "test"
    """Split of a Hugging Face dataset that `validation` names."""
    subset: str | None = None
    """Configuration name of a Hugging Face dataset (`main` for gsm8k)."""
    preset: Literal["verl", "trl", "gsm8k", "nemo_rl"] | None = None
    """A known layout of rows; sets the keys below unless they are given."""
    prompt_key: str | None = None
    """Dotted path of the prompt in a row: a string, or a list of chat messages. `prompt` when null."""
    answer_key: str | None = None
    """Dotted path of the reference answer in a row. `answer` when null."""
    system_prompt: str | None = None
    """A system message put in front of a prompt that has none (chat templates only)."""
    apply_chat_template: bool | None = None
    """Whether a string prompt becomes a user message of the tokenizer's template; null: if the tokenizer has one."""


class EnvironmentConfig(Section):
    """What scores a trajectory."""

    name: str = "exact_match"
    """A built-in name, or `module:Class` or `module:function`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the environment's constructor as keyword arguments."""


class GrpoConfig(Section):
    """The algorithm's sizes. N = num_prompts_per_step, G = num_generations_per_prompt, A = max_trajectory_age_steps."""

    num_prompts_per_step: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    """Groups that a step consumes, exactly (N)."""
    num_generations_per_prompt: Annotated[int, Field(ge=1, le=4096)] = 16
    """Trajectories a group (G)."""
    max_num_steps: Annotated[int, Field(ge=1, lt=10**8)] = 100
    """Last step of the run, at most."""
    max_num_epochs: Annotated[int, Field(ge=1)] | None = None
    """Passes over the training rows, at most; null: no bound. A remainder below N rows is dropped and counted."""
    max_trajectory_age_steps: Annotated[int, Field(ge=0, le=16)] = 1
    """Bound on target version minus generation version (A), for every token. 0 is synchronous training."""
    normalize_rewards: bool = True
    """Divide advantages by the group's standard deviation."""
    use_leave_one_out_baseline: bool = False
    """Baseline of a trajectory: the mean of the others instead of the mean of all."""
    use_dynamic_sampling: bool = False
    """Leave out groups whose rewards are all equal: the next prompt takes the slot, up to `dispatch.max_draws` times."""
    overlong_filtering: bool = False
    """Give truncated trajectories no loss (they still count in the baseline)."""
    val_period: Annotated[int, Field(ge=0)] = 0
    """Validate every so many versions; 0: never."""
    val_at_start: bool = False
    """Validate version 0 too."""
    val_at_end: bool = False
    """Validate the last version too."""
    max_val_samples: Annotated[int, Field(ge=1)] | None = None
    """Validation prompts a time, at most; null: all rows."""
    val_temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature of validation; 0 is greedy."""
    val_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """A validation that is not done by then is reported incomplete and left."""

    @model_validator(mode="after")
    def _comparable(self) -> GrpoConfig:
        if self.use_dynamic_sampling and self.num_generations_per_prompt < 2:
            raise ValueError(
                "use_dynamic_sampling needs num_generations_per_prompt of 2 or more: one reward is always equal to itself"
            )
        return self


class GenerationConfig(Section):
    """Sampling, as vLLM names it. Requests carry all of it."""

    max_new_tokens: Annotated[int, Field(ge=1)] = 512
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None


class RefitConfig(Section):
    """Giving the producers new weights."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Transport of the weights; auto: nccl where both sides have GPUs, else gloo."""
    mode: Literal["keep", "drain"] = "keep"
    """keep: running requests are frozen and go on with the new weights; drain: they end first and no new one starts."""
    recompute_kv_cache_after_weight_updates: bool = True
    """Drop the caches of running requests at a refit, so that all their context is of the new weights."""
    phase_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Deadline of each phase of a round, counted in beats; the transport's own timeout is half of it."""
    max_tries: Annotated[int, Field(ge=1)] = 3
    """Failed rounds of one producer until it is expelled."""
    host: str | None = None
    """Address that the learner's store binds and producers reach; null: that of the route to the broker."""
    group_size: Annotated[int, Field(ge=1)] | None = None
    """Producers a transfer group; null: all in one."""
    bucket_mib: Annotated[int, Field(ge=1, le=4096)] = 64
    """Size of a bucket of weights, at most (a single larger tensor is a bucket of its own)."""
    probe_limit: Annotated[float, Field(gt=0)] | None = None
    """Largest |engine - learner| log-probability on the probe sequence; null: 1e-3 for float32, 0.5 for bfloat16."""


class DispatchConfig(Section):
    """Giving out slots, and judging who is alive. Beats are the dispatcher's unit of time; they stand still when it does."""

    beat_s: Annotated[float, Field(gt=0)] = 1.0
    """Shortest time between two beats."""
    heartbeat_s: Annotated[float, Field(gt=0)] = 1.0
    """Time between a producer's heartbeats."""
    lease_beats: Annotated[int, Field(ge=2)] = 15
    """A producer is lost so many beats after its last record."""
    max_attempts: Annotated[int, Field(ge=1)] = 3
    """Tries of one draw whose rollout fails, before its prompt is given up."""
    max_draws: Annotated[int, Field(ge=1)] = 8
    """Prompts of one slot that a filter may refuse; past it the first refused group is trained."""
    max_lost: Annotated[int, Field(ge=1)] = 4
    """Losses of a producer in the middle of one draw, before its prompt is given up."""
    hedge_below: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Slots that the learner waits for are tried a second time elsewhere when their producer's token rate is below this share of
    the fleet's median; 0: never."""
    no_progress_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """The run ends when no group was accepted for so long."""
    no_producer_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """The run ends when there was no producer for so long."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """The first weights wait so long for `producer.count` producers, and then go to those that are there."""
    stall_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """A request without a new token for so long is issued again."""

    @model_validator(mode="after")
    def _lease(self) -> DispatchConfig:
        if self.lease_beats * self.beat_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"a lease of {self.lease_beats} beats of {self.beat_s} s is shorter than three heartbeats of {self.heartbeat_s} s"
            )
        return self


class SecurityConfig(Section):
    """How clients prove who they are. Secrets stand here only as `env:NAME` or `file:PATH`."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password: SecretStr | None = None
    ca_location: str | None = None

    @model_validator(mode="after")
    def _secret_by_reference(self) -> SecurityConfig:
        if self.password is not None and not self.password.get_secret_value().startswith(("env:", "file:")):
            raise ValueError("a secret may stand in a config only as env:NAME or file:PATH")
        return self


class KafkaConfig(Section):
    """The broker and the topics."""

    bootstrap_servers: str | None = None
    """host:port, comma separated; null: KAFKA_BOOTSTRAP_SERVERS, else the local broker is started."""
    partitions: Annotated[int, Field(ge=1, le=256)] = 1
    """Partitions of a version topic; slot s goes to partition s % partitions."""
    request_partitions: Annotated[int, Field(ge=1, le=4096)] = 8
    """Partitions of the requests topic; each producer reads one."""
    replication_factor: Annotated[int, Field(ge=1)] = 1
    min_insync_replicas: Annotated[int, Field(ge=1)] = 1
    compression: Literal["none", "lz4", "zstd", "gzip", "snappy"] = "lz4"
    max_record_mib: Annotated[int, Field(ge=1, le=90)] = 64
    """Largest record, before compression. The broker's request limit of 100 MiB bounds it."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """How long one call to the broker may take before it counts as failed."""
    outage_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """An outage of the broker is waited for so long; then the learner ends, and the run can be gone on with."""
    security: SecurityConfig = Field(default_factory=SecurityConfig)

    @model_validator(mode="after")
    def _durable(self) -> KafkaConfig:
        if self.replication_factor > 1 and self.min_insync_replicas < 2:
            raise ValueError("replication_factor > 1 with min_insync_replicas 1 can lose acknowledged records; use 2")
        if self.min_insync_replicas > self.replication_factor:
            raise ValueError("min_insync_replicas cannot exceed replication_factor")
        return self


SHARED_SECTIONS: dict[str, type[Section]] = {
    "run": RunConfig,
    "model": ModelConfig,
    "data": DataConfig,
    "environment": EnvironmentConfig,
    "grpo": GrpoConfig,
    "generation": GenerationConfig,
    "dispatch": DispatchConfig,
    "refit": RefitConfig,
    "kafka": KafkaConfig,
}
