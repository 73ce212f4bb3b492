"""What vLLM alone makes of the same requests: the bound of the run's token rate on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack

from schemas.records.group import TrajectoryGroup

GROUPS_AT_ONCE = 16  # as many as a step of the tiny run asks for


def tokens_per_s(model: dict[str, Any], weights: Path, groups: Sequence[TrajectoryGroup], max_new_tokens: int) -> float:
    """Generated tokens a second of one engine on one thread, log-probabilities included, in a process of its own."""
    requests = [[[int(i) for i in group.prompt], len(group.trajectories)] for group in groups]
    payload = msgpack.packb(
        {"weights": str(weights), "dtype": model["dtype"], "length": model["max_total_sequence_length"],
         "max_new_tokens": max_new_tokens, "requests": requests}
    )  # fmt: skip
    env = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bare_vllm"], input=payload, stdout=subprocess.PIPE, env=env, check=True
    )
    return float(done.stdout.split()[-1])


def _measure(job: dict[str, Any]) -> float:
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = LLM(
        job["weights"], dtype=job["dtype"], max_model_len=job["length"], enforce_eager=True, disable_log_stats=True,
        skip_tokenizer_init=True,
    )  # fmt: skip
    tokens, seconds = 0, 0.0
    requests = job["requests"]
    for at in range(0, len(requests), GROUPS_AT_ONCE):
        batch = requests[at : at + GROUPS_AT_ONCE]
        sampling = [
            SamplingParams(
                n=count, max_tokens=job["max_new_tokens"], temperature=1.0, logprobs=0, flat_logprobs=True, detokenize=False,
                stop_token_ids=[2], output_kind=RequestOutputKind.FINAL_ONLY,
            )
            for _, count in batch
        ]  # fmt: skip
        began = time.monotonic()
        outputs = engine.generate([{"prompt_token_ids": ids} for ids, _ in batch], sampling, use_tqdm=False)
        if at:  # the first batch pays for what is built on first use
            seconds += time.monotonic() - began
            tokens += sum(len(c.token_ids) for output in outputs for c in output.outputs)
    return tokens / seconds


if __name__ == "__main__":
    sys.stdout.write(f"\n{_measure(msgpack.unpackb(sys.stdin.buffer.read()))}\n")
    sys.stdout.flush()
    os._exit(0)
