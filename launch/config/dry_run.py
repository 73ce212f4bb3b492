"""What `--dry-run` prints: the resolved config and the topics of the run. Nothing is started, no broker is asked."""

from __future__ import annotations

from collections.abc import Iterator

from broker_config.topics import MIB, max_message_bytes, specs_for_run
from schemas.config.config import Config

# Beside its numbers a trajectory carries names and spans, a group its ids and digests.
TRAJECTORY_BYTES = 250
GROUP_BYTES = 700
TOKEN_BYTES = 9  # id, mask, log-probability


def largest_group_bytes(config: Config) -> int:
    """Size of a group whose prompt and responses are as long as the config allows."""
    longest = config.model.max_total_sequence_length
    response = min(config.generation.max_new_tokens, longest - 1)
    trajectories = config.grpo.num_generations_per_prompt * (TOKEN_BYTES * response + TRAJECTORY_BYTES)
    return GROUP_BYTES + 4 * (longest - response) + trajectories


def validated_versions(config: Config) -> int:
    """How many versions are validated if the run takes `max_num_steps`."""
    grpo = config.grpo
    last = grpo.max_num_steps
    versions = set(range(grpo.val_period, last + 1, grpo.val_period)) if grpo.val_period else set()
    if grpo.val_at_start:
        versions.add(0)
    if grpo.val_at_end:
        versions.add(last)
    return len(versions)


def topic_plan(config: Config) -> list[str]:
    """A line for each topic: its name, its partitions, and the most that it can hold."""
    run_id = config.run.id or f"{config.run.name}-<start time>"
    # Topic names are checked strictly: without an id, the run's name stands in for it.
    specs = specs_for_run(config.run.id or config.run.name, config.kafka)
    rows = [(f"{run_id}.{kind}", str(spec.partitions), "small JSON records") for kind, spec in specs.items()]
    rows += list(_version_rows(config, run_id))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    kafka = config.kafka
    head = (
        f"topics: replication {kafka.replication_factor}, min ISR {kafka.min_insync_replicas}, compression {kafka.compression}, "
        f"largest record {kafka.max_record_mib} MiB (batch {max_message_bytes(kafka) // MIB} MiB), kept until retired"
    )
    return [head, *(f"  {name:<{widths[0]}}  {parts:>{widths[1]}} partition(s)  {size}" for name, parts, size in rows)]


def _version_rows(config: Config, run_id: str) -> Iterator[tuple[str, str, str]]:
    grpo, group = config.grpo, largest_group_bytes(config)
    n, last = grpo.num_prompts_per_step, grpo.max_num_steps
    whole = f"{n} groups of up to {_size(group)}, {_size(n * group)} a version, {_size(n * group * last)} in all, uncompressed"
    names = f"{run_id}.trajectories.v{0:08d} to v{last - 1:08d}"
    yield names, str(config.kafka.partitions), whole
    validated = validated_versions(config)
    if validated:
        prompts = grpo.max_val_samples or "all"
        yield f"{run_id}.validation.v*", str(config.kafka.partitions), f"{validated} versions of {prompts} prompts"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def describe_dry_run(config: Config) -> str:
    """The whole output."""
    return "\n".join([config.to_yaml().rstrip(), "", *("# " + line for line in topic_plan(config)), ""])
