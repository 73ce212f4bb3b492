"""The manifest of a checkpoint: what it is, what its arithmetic depended on, and where a resumed learner continues to read.

The file is whole or not there, whoever dies while it is written. A folder without one is no checkpoint. Reading and writing
manifests needs neither torch nor megatron.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from learner.link.messages import ManifestFacts
from schemas.config.learner import LearnerConfig

MANIFEST = "manifest.json"


class _ManifestPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Offsets(_ManifestPart):
    """Next offsets: where a resumed learner continues to read."""

    control: int
    status: int
    requests: dict[int, int] = Field(default_factory=dict)
    """By partition."""
    metrics: int = 0
    """Records of the steps after the checkpoint begin there."""

    @classmethod
    def of(cls, facts: ManifestFacts) -> Offsets:
        """The offsets in the dispatcher's answer."""
        return cls(control=facts.control, status=facts.status, requests=dict(facts.requests), metrics=facts.metrics)


class Determinism(_ManifestPart):
    """What a step's arithmetic depends on, besides config and seals. A replay under other values compares with a tolerance."""

    torch: str
    megatron: str
    transformers: str
    device: str
    """`cpu` or the name of the GPU."""
    cpu_capability: str
    """Instruction set that torch's kernels were dispatched to."""
    threads: int
    data_parallel_size: int
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    train_micro_batch_size: int
    deterministic: bool


class Manifest(_ManifestPart):
    """What a checkpoint is. `run`: its uuid; `incarnation`: of the learner that wrote it; `topic_ids`: by the topic's name."""

    format: Literal["weir.checkpoint/1"] = "weir.checkpoint/1"
    run: str
    version: int
    incarnation: int
    topic_ids: dict[str, str]
    next_offsets: Offsets
    state_digest: str
    weights_digest: str
    config_digest: str
    determinism: Determinism
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    files: dict[str, int] = Field(default_factory=dict)
    """Size in bytes by relative path, filled in when the manifest is written."""


def determinism(learner: LearnerConfig) -> Determinism:
    """The facts of this process."""
    import torch  # not at the top: who reads manifests must not wait for it

    gpu = torch.cuda.is_available()
    return Determinism(
        torch=torch.__version__,
        megatron=package_version("megatron-core"),
        transformers=package_version("transformers"),
        device=torch.cuda.get_device_name() if gpu else "cpu",
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        data_parallel_size=learner.data_parallel_size,
        tensor_model_parallel_size=learner.tensor_model_parallel_size,
        pipeline_model_parallel_size=learner.pipeline_model_parallel_size,
        train_micro_batch_size=learner.train_micro_batch_size,
        deterministic=learner.deterministic,
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write or replace the manifest in `folder`. The file is durable; its name becomes so with the folder (`fsync`).

    Raises:
        OSError
    """
    part = folder / f"{MANIFEST}.part"
    part.write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    # Bytes before the name: after a power cut a renamed file that was not synced may be there and empty.
    fsync(part)
    part.rename(folder / MANIFEST)


def fsync(path: Path) -> None:
    """Make a file, or the names in a folder, durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
