"""What a configuration means to vLLM, without vLLM."""

import json
from pathlib import Path
from typing import Any

import pytest

from producer.engine.vllm_arguments import end_token_ids, engine_arguments, set_environment
from schemas.config.grpo import GenerationConfig
from schemas.config.model import ModelConfig
from schemas.config.producer import ProducerConfig
from schemas.errors import ConfigError

MODEL = ModelConfig(path="somewhere", dtype="float32", max_total_sequence_length=64)


def arguments(generation: GenerationConfig | None = None, **vllm: Any) -> dict[str, Any]:
    return engine_arguments(MODEL, generation or GenerationConfig(), ProducerConfig(vllm=vllm), on_gpu=False)


def test_arguments_follow_the_configuration_and_the_users_own_come_on_top() -> None:
    made = arguments(max_num_seqs=7, load_format="auto")
    assert (made["model"], made["dtype"], made["max_model_len"]) == ("somewhere", "float32", 64)
    assert made["logprobs_mode"] == "processed_logprobs"
    assert (made["max_num_seqs"], made["load_format"]) == (7, "auto")


def test_two_producers_do_not_sample_with_the_same_seed() -> None:
    assert arguments()["seed"] != arguments()["seed"]
    assert arguments(seed=3)["seed"] == 3


def test_a_tokenizer_is_loaded_only_for_stop_strings() -> None:
    assert arguments()["skip_tokenizer_init"] is True
    made = arguments(GenerationConfig(stop=["\n"]))
    assert "skip_tokenizer_init" not in made
    assert made["tokenizer"] == "somewhere"


def test_all_arguments_that_are_not_free_are_refused_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        arguments(logprobs_mode="raw_logprobs", async_scheduling=True, pipeline_parallel_size=2, max_num_seqs=1)
    keys = {problem.key for problem in refused.value.problems}
    assert keys == {"producer.vllm.logprobs_mode", "producer.vllm.async_scheduling", "producer.vllm.pipeline_parallel_size"}


def test_the_environment_keeps_what_is_set_but_for_the_one_process() -> None:
    environ = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_KVCACHE_SPACE": "4"}
    set_environment(environ, ProducerConfig(threads=3, vllm={"cpu_kvcache_space_gib": 2}))
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert environ["OMP_NUM_THREADS"] == "3"


def test_end_tokens_are_those_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert end_token_ids(str(tmp_path)) == (7,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 7]}))
    assert end_token_ids(str(tmp_path)) == (7, 9)
