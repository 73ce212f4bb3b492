from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.config.check import check_raw
from launch.config.rules import Machine
from schemas.errors import ConfigError, Problem
from tests.fakes.records.runs import raw_config

CPU = Machine(gpu=False, bootstrap=None)


def problems(machine: Machine = CPU, **changes: Any) -> dict[str, Problem]:
    """Problems by key."""
    try:
        check_raw(raw_config(**changes), machine=machine)
    except ConfigError as error:
        return {problem.key: problem for problem in error.problems}
    return {}


def warnings(**changes: Any) -> dict[str, Problem]:
    return {problem.key: problem for problem in check_raw(raw_config(**changes), machine=CPU).warnings}


def checkpoint(folder: Path, **config: Any) -> str:
    """A checkpoint folder as far as the rules look at it."""
    folder.mkdir(exist_ok=True)
    sizes = {
        "model_type": "qwen3",
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "head_dim": 32,
    }
    (folder / "config.json").write_text(json.dumps({**sizes, **config}))
    (folder / "tokenizer.json").write_text("{}")
    return str(folder)


def test_the_base_config_of_these_tests_is_valid() -> None:
    assert problems() == {}


def test_all_problems_are_shown_at_once_even_when_a_section_cannot_be_read() -> None:
    found = problems(
        loss_fn={"ratio_clip_min": 7},
        generation={"max_new_tokens": 64},
        grpo__num_prompts_per_step=15,
        learner={"nproc": 2},
        grpoo={},
    )
    assert found.keys() == {"grpoo", "loss_fn.ratio_clip_min", "generation.max_new_tokens", "grpo.num_prompts_per_step"}


def test_prompts_that_do_not_divide_over_data_parallel_name_the_nearest_that_do() -> None:
    found = problems(grpo__num_prompts_per_step=15, learner={"nproc": 2})["grpo.num_prompts_per_step"]
    assert (found.value, found.fix) == (15, "use 14 or 16")


@pytest.mark.parametrize(
    ("prompts", "group", "nproc", "micro"), [(6, 4, 1, 16), (10, 6, 2, 8), (3, 5, 1, 2), (8, 8, 4, 3), (1, 4, 1, 64)]
)
def test_every_number_that_is_proposed_works(prompts: int, group: int, nproc: int, micro: int) -> None:
    grpo = {"num_generations_per_prompt": group, "max_num_steps": 5}
    learner = {"nproc": nproc, "train_micro_batch_size": micro}
    found = problems(grpo={**grpo, "num_prompts_per_step": prompts}, learner=learner)["grpo.num_prompts_per_step"]
    batches, _, micros = found.fix.removeprefix("use ").partition(", or set learner.train_micro_batch_size to ")
    for n in batches.split(" or "):
        assert problems(grpo={**grpo, "num_prompts_per_step": int(n)}, learner=learner) == {}
    for size in micros.split(" or "):
        changed = {**learner, "train_micro_batch_size": int(size)}
        assert problems(grpo={**grpo, "num_prompts_per_step": prompts}, learner=changed) == {}


def test_a_global_batch_must_divide_the_version() -> None:
    found = problems(learner={"train_global_batch_size": 100, "train_micro_batch_size": 4})
    assert found["learner.train_global_batch_size"].fix == "use 64 or 128"


def test_a_global_batch_must_be_made_of_micro_batches() -> None:
    found = problems(learner={"train_global_batch_size": 128, "train_micro_batch_size": 48})
    assert "micro-batch 48" in found["learner.train_global_batch_size"].why


def test_forcing_the_ratio_needs_one_optimizer_step_a_version() -> None:
    learner = {"train_global_batch_size": 128}
    assert "loss_fn.force_on_policy_ratio" in problems(loss_fn={"force_on_policy_ratio": True}, learner=learner)
    assert problems(loss_fn={"force_on_policy_ratio": True}) == {}


def test_completions_must_leave_room_for_a_prompt() -> None:
    assert problems(generation__max_new_tokens=64)["generation.max_new_tokens"].fix.startswith("use at most 63")
    assert problems(generation__max_new_tokens=63) == {}


def test_a_group_must_fit_into_a_record() -> None:
    model = {**raw_config()["model"], "max_total_sequence_length": 100_000}
    assert "kafka.max_record_mib" in problems(model=model, kafka={"max_record_mib": 8})
    assert problems(model=model, kafka={"max_record_mib": 64}) == {}


@pytest.mark.parametrize("key", ["val_period", "val_at_start", "val_at_end"])
def test_validation_needs_validation_data(key: str) -> None:
    changes: dict[str, Any] = {f"grpo__{key}": 1}
    assert f"grpo.{key}" in problems(**changes)
    assert problems(**changes, data__validation="environment") == {}


def test_a_missing_model_folder_is_reported_unless_it_is_built_or_on_the_hub(tmp_path: Path) -> None:
    assert problems(model={"path": str(tmp_path / "none")})["model.path"].why == "no such folder"
    assert problems(model={"path": str(tmp_path)})["model.path"].why == "the folder has no config.json"
    assert problems(model={"path": "Qwen/Qwen3-0.6B"}) == {}
    assert problems(model={"path": str(tmp_path / "none"), "build": "tiny"}) == {}


def test_a_path_below_a_folder_that_exists_is_not_taken_for_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "model.path" in problems(model={"path": "models/tiny"})


def test_sequences_beyond_the_models_positions_are_refused(tmp_path: Path) -> None:
    model = {"path": checkpoint(tmp_path / "m"), "max_total_sequence_length": 200}
    assert problems(model=model)["model.max_total_sequence_length"].fix == "use at most 128"
    assert problems(model={**model, "max_total_sequence_length": 128}) == {}


def test_a_head_size_that_the_cpu_kernels_lack_is_refused_on_a_cpu_only(tmp_path: Path) -> None:
    model = {"path": checkpoint(tmp_path / "m", head_dim=16), "max_total_sequence_length": 64}
    assert "head_dim 16" in problems(model=model)["model.path"].why
    assert problems(Machine(gpu=True, bootstrap=None), model=model) == {}
    assert problems(model=model, producer={"engine": "scripted"}) == {}


def test_the_head_size_follows_from_hidden_size_when_it_is_not_given(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m", head_dim=None, hidden_size=64)
    assert "head_dim 16" in problems(model={"path": path, "max_total_sequence_length": 64})["model.path"].why


def test_parallel_sizes_must_divide_the_model(tmp_path: Path) -> None:
    model = {"path": checkpoint(tmp_path / "m"), "max_total_sequence_length": 64}
    tensor = problems(model=model, learner={"nproc": 4, "tensor_model_parallel_size": 4})
    assert tensor["learner.tensor_model_parallel_size"].fix == "use 2"
    pipeline = problems(model=model, learner={"nproc": 4, "pipeline_model_parallel_size": 4})
    assert pipeline["learner.pipeline_model_parallel_size"].fix == "use 2"


def test_a_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m", quantization_config={"bits": 4})
    assert "quantized" in problems(model={"path": path, "max_total_sequence_length": 64})["model.path"].why


def test_a_model_of_an_unknown_family_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m", model_type="gpt2")
    found = problems(model={"path": path, "max_total_sequence_length": 64})["model.path"]
    assert found.why == "its config has model_type 'gpt2'"
    assert found.fix.startswith("the learner knows llama, qwen2, qwen3")
    nameless = checkpoint(tmp_path / "m", model_type=None)
    assert "no model_type" in problems(model={"path": nameless, "max_total_sequence_length": 64})["model.path"].why


def test_a_model_folder_without_tokenizer_is_reported(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").unlink()
    assert "model.tokenizer" in problems(model={"path": path, "max_total_sequence_length": 64})


def test_engine_arguments_that_are_set_elsewhere_are_refused() -> None:
    assert "producer.vllm.dtype" in problems(producer={"vllm": {"dtype": "bfloat16"}})


def test_more_producers_than_request_partitions_are_refused() -> None:
    assert problems(producer={"count": 9})["kafka.request_partitions"].fix.startswith("use at least 9")


def test_nccl_needs_a_gpu() -> None:
    assert "refit.backend" in problems(refit={"backend": "nccl"})
    assert problems(Machine(gpu=True, bootstrap=None), refit={"backend": "nccl"}) == {}


def test_the_local_broker_has_one_replica_and_no_login() -> None:
    kafka = {"replication_factor": 3, "min_insync_replicas": 2}
    assert "kafka.replication_factor" in problems(kafka=kafka)
    assert problems(Machine(gpu=False, bootstrap="broker:9092"), kafka=kafka) == {}
    assert problems(kafka={**kafka, "bootstrap_servers": "broker:9092"}) == {}


def test_a_secret_that_cannot_be_read_is_reported_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_TEST_PASSWORD", raising=False)
    security = {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "username": "u", "password": "env:WEIR_TEST_PASSWORD"}
    kafka = {"bootstrap_servers": "broker:9092", "security": security}
    assert "kafka.security.password" in problems(kafka=kafka)
    monkeypatch.setenv("WEIR_TEST_PASSWORD", "x")
    assert problems(kafka=kafka) == {}


def test_ranks_must_outwait_a_refit_phase() -> None:
    assert problems(learner={"rank_timeout_s": 60})["learner.rank_timeout_s"].fix == "use more than 60, for example 120"


def test_the_longest_pause_before_a_restart_is_not_shorter_than_the_first() -> None:
    found = problems(launch={"restart": {"backoff_s": 40}})
    assert found["launch.restart.max_backoff_s"].fix == "use at least 40"
    assert problems(launch={"restart": {"backoff_s": 30}}) == {}


def test_a_run_id_with_a_folder_is_taken_unless_the_run_is_resumed(tmp_path: Path) -> None:
    run = {"name": "tiny", "id": "mine", "dir": str(tmp_path)}
    assert problems(run=run) == {}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").touch()
    assert "run.id" in problems(run=run)
    assert check_raw(raw_config(run=run), machine=CPU, resuming=True).config.run.id == "mine"


def test_an_unknown_environment_is_reported() -> None:
    assert any(key.startswith("environment") for key in problems(environment={"name": "no_such_environment"}))


def test_a_missing_data_file_is_reported(tmp_path: Path) -> None:
    found = problems(data={"train": str(tmp_path / "none.jsonl")}, environment={"name": "exact_match"})
    assert any(key.startswith("data") for key in found)


def test_idle_capacity_is_a_warning() -> None:
    found = warnings(producer={"count": 4, "max_groups_in_flight": 20})["producer.max_groups_in_flight"]
    assert "80 groups" in found.why and "32 slots" in found.why


def test_one_trajectory_a_group_is_a_warning() -> None:
    assert "grpo.num_generations_per_prompt" in warnings(
        grpo__num_generations_per_prompt=1, learner={"train_micro_batch_size": 16}
    )


def test_old_trajectories_without_correction_are_a_warning() -> None:
    loss = {"use_importance_sampling_correction": False, "truncated_importance_sampling_type": None}
    assert "grpo.max_trajectory_age_steps" in warnings(grpo__max_trajectory_age_steps=4, loss_fn=loss)
    assert "grpo.max_trajectory_age_steps" not in warnings(grpo__max_trajectory_age_steps=4)


def test_validation_data_that_nobody_uses_is_a_warning() -> None:
    assert "data.validation" in warnings(data__validation="environment")
