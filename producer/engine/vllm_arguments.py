"""What a run's configuration means to vLLM: engine arguments and environment. vLLM is not imported here.

Some arguments are fixed: with other values, weights, log-probabilities and versions would not be what the records claim.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from schemas.config.grpo import GenerationConfig
from schemas.config.model import ModelConfig
from schemas.config.producer import ProducerConfig
from schemas.errors import ConfigError, Problem
from schemas.weights.plan import model_config_value

_OWNED = {
    "model": "set model.path",
    "dtype": "set model.dtype",
    "max_model_len": "set model.max_total_sequence_length",
    "tokenizer": "set model.tokenizer",
    "logprobs_mode": "log-probabilities are always those of the distribution sampled from",
    "max_logprobs": "one log-probability per token is asked for",
    "weight_transfer_config": "set refit.backend",
    "worker_extension_cls": "the refit needs it",
    "async_scheduling": "a step must be over before weights change",
    "quantization": "the weights served must be the weights sent",
    "speculative_config": "its draft weights are not sent",
}
_SINGLE = ("pipeline_parallel_size", "data_parallel_size")


def cpu_threads(producer: ProducerConfig) -> int | None:
    """OMP threads of the engine; None: torch's own choice. Spinning threads on few cores slow each other down."""
    if producer.threads is not None:
        return producer.threads
    return 1 if (os.cpu_count() or 1) <= 4 else None


def set_environment(environ: MutableMapping[str, str], producer: ProducerConfig) -> None:
    """Set variables that vLLM reads when it is imported. Those set already stay, except the one that the engine relies on."""
    # A thread of this process steps the engine: no second import of vLLM, no orphans, and pauses fall between two steps.
    environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(producer.vllm.get("cpu_kvcache_space_gib", 1)))
    environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    threads = cpu_threads(producer)
    if threads is not None:
        environ.setdefault("OMP_NUM_THREADS", str(threads))


def engine_arguments(
    model: ModelConfig, generation: GenerationConfig, producer: ProducerConfig, *, on_gpu: bool
) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs, except for the weight-transfer object; `producer.vllm` adds to them.

    Raises:
        ConfigError: `producer.vllm` sets a fixed argument.
    """
    given = {key: value for key, value in producer.vllm.items() if key != "cpu_kvcache_space_gib"}
    problems = [
        Problem(f"producer.vllm.{key}", given[key], "fixed in a run", f"leave it out: {fix}")
        for key, fix in _OWNED.items()
        if key in given
    ]
    problems += [
        Problem(f"producer.vllm.{key}", given[key], "an engine is one replica in one stage", "start more producers instead")
        for key in _SINGLE
        if given.get(key, 1) != 1
    ]
    if problems:
        raise ConfigError(problems)
    arguments: dict[str, Any] = {
        "model": model.path,
        "dtype": model.dtype,
        "max_model_len": model.max_total_sequence_length,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": 1,
        "scheduling_policy": "priority",
        "async_scheduling": False,
        # vLLM's default is 0 in every process: all producers would sample the same sequences.
        "seed": secrets.randbits(31),
        # The first refit brings the weights; to read them from disk as well would only take time.
        "load_format": "dummy",
        "enforce_eager": not on_gpu,
        "disable_log_stats": True,
        "worker_extension_cls": "producer.refit.transfer_engine.WorkerExtension",
    }
    if generation.stop:
        arguments["tokenizer"] = model.tokenizer or model.path
    else:
        # Only stop strings need text; end tokens come from `end_token_ids`.
        arguments["skip_tokenizer_init"] = True
    return arguments | given


def end_token_ids(model_path: str) -> tuple[int, ...]:
    """Tokens that end a completion: those of generation_config.json and of config.json."""
    found: set[int] = set()
    values = [model_config_value(model_path, "eos_token_id")]
    generation = Path(model_path) / "generation_config.json"
    if generation.is_file():
        values.append(json.loads(generation.read_text()).get("eos_token_id"))
    for value in values:
        if value is not None:
            found.update(value if isinstance(value, list) else [value])
    return tuple(sorted(found))
