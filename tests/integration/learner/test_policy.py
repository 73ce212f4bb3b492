"""The policy in one process, against transformers and torch's own optimizer."""

import errno
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from transformers import AutoModelForCausalLM

from learner.grpo.batch import TrainBatch
from learner.model.policy import Policy
from schemas.config.learner import LearnerConfig
from schemas.config.loss import ClippedPgConfig
from schemas.config.model import ModelConfig
from schemas.errors import ConfigError, WeirError
from tests.fakes.learner.process_group import gloo  # noqa: F401 - a fixture
from tests.fakes.learner.tiny_models import FAMILIES, hf_logprobs, make_batch, make_model

pytestmark = pytest.mark.usefixtures("gloo")
OPTIMIZER = {"lr": 1e-3, "adam_eps": 1e-4, "weight_decay": 0.1, "clip_grad": 0.1}
Build = Callable[..., Policy]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture
def build(folder: Path) -> Build:
    def make(
        *,
        dtype: str = "float32",
        loss: dict[str, Any] | None = None,
        temperature: float = 1.0,
        path: Path = folder,
        **keys: object,
    ) -> Policy:
        learner = LearnerConfig.model_validate({"optimizer": OPTIMIZER, "train_micro_batch_size": 5} | keys)
        loss_fn = ClippedPgConfig.model_validate(loss or {})
        model = ModelConfig(path=str(path), dtype=dtype)
        return Policy(model, learner, loss_fn, seed=0, total_steps=10, temperature=temperature)

    return make


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.export()}


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_transformers(family: str, tmp_path: Path, build: Build) -> None:
    path = make_model(tmp_path / family, family)
    tokens = make_batch(rows=1, width=96).tokens[0, :90].clamp(min=3)
    with torch.no_grad():
        expected = hf_logprobs(AutoModelForCausalLM.from_pretrained(path), tokens[None])[0, 1:]
    assert build(path=path).probe_logprobs(tokens.tolist()) == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_export_gives_back_the_checkpoint_bit_for_bit(family: str, tmp_path: Path, build: Build) -> None:
    path = make_model(tmp_path / family, family)
    policy = build(path=path)
    expected = AutoModelForCausalLM.from_pretrained(path).state_dict()
    if FAMILIES[family]["tie_word_embeddings"]:
        del expected["lm_head.weight"]
    found = weights(policy)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert policy.tensor_index() == [(name, tuple(tensor.shape)) for name, tensor in found.items()]


def test_batch_log_probabilities_are_tempered_and_only_on_generated_tokens(folder: Path, build: Build) -> None:
    batch = make_batch()
    found = build(temperature=0.7).logprobs(batch)
    with torch.no_grad():
        expected = hf_logprobs(AutoModelForCausalLM.from_pretrained(folder), batch.tokens, 0.7) * batch.token_mask
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert not found[batch.token_mask == 0].any()


def reference_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: TrainBatch) -> tuple[float, float]:
    """One GRPO step as on paper, with torch alone: ratio 1, importance weights clamped at 2, mean over all tokens."""
    curr = hf_logprobs(model, batch.tokens)
    weight = (curr.detach() - batch.gen_logprobs).exp().clamp(max=2.0)
    loss = -(weight * batch.advantages[:, None] * (curr - curr.detach()).exp() * batch.token_mask).sum() / batch.token_mask.sum()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["clip_grad"])
    optimizer.step()
    return loss.item(), norm.item()


@pytest.mark.parametrize("micro_batch", [3, 16])
def test_training_is_what_torch_alone_does(micro_batch: int, folder: Path, build: Build) -> None:
    policy, batch = build(train_micro_batch_size=micro_batch), make_batch()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": OPTIMIZER["weight_decay"]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER["lr"], eps=OPTIMIZER["adam_eps"])
    for _ in range(3):
        loss, norm = reference_step(model, optimizer, batch)
        metrics = policy.train_step(batch)
        assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    expected = dict(model.named_parameters())
    for name, tensor in policy.export():
        torch.testing.assert_close(tensor, expected[name].detach(), atol=2e-5, rtol=0, msg=name)


def test_sequence_level_loss_does_not_depend_on_micro_batches(build: Build) -> None:
    batch = make_batch()
    loss = {"token_level_loss": False, "sequence_level_importance_ratios": True}
    one, many = (build(train_micro_batch_size=size, loss=loss).train_step(batch) for size in (16, 3))
    assert many == pytest.approx(one, rel=1e-5, abs=1e-6)


def test_metrics_count_the_batch_and_split_it_by_age(build: Build) -> None:
    batch = make_batch()
    metrics = build().train_step(batch)
    assert metrics["global_valid_toks"] == batch.token_mask.sum()
    assert metrics["global_valid_seqs"] == metrics["num_valid_samples"] == len(batch)
    assert metrics["probs_ratio"] == metrics["probs_ratio_clamped"] == 1.0
    assert metrics["lr"] == OPTIMIZER["lr"]
    assert metrics["skipped_step"] == 0.0
    shares = {age: float(((batch.ages == age) & (batch.token_mask > 0)).sum()) for age in (0, 1)}
    by_age = sum(metrics[f"token_mult_prob_error_age_{age}"] * share for age, share in shares.items())
    assert by_age / sum(shares.values()) == pytest.approx(metrics["token_mult_prob_error"])
    assert "token_mult_prob_error_age_2" not in metrics
    assert metrics["gen_logprob_error_max_age_1"] > 0


def test_trajectories_without_loss_change_nothing(build: Build) -> None:
    batch = make_batch()
    kept = batch.rows(torch.arange(12), batch.tokens.shape[1])
    masked = make_batch()
    masked.sample_mask[12:] = 0.0
    masked.advantages[12:] = 100.0
    one, other = build(), build()
    alone, among = one.train_step(kept), other.train_step(masked)
    assert among == pytest.approx(alone, rel=1e-5, abs=1e-6)
    for (name, expected), (_, found) in zip(one.export(), other.export(), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=0, msg=name)


def test_a_gradient_that_is_not_finite_changes_no_weight_and_is_counted(build: Build) -> None:
    policy, batch = build(), make_batch()
    policy.train_step(batch)
    before = weights(policy)
    bad = make_batch()
    bad.advantages[3] = float("inf")
    assert policy.train_step(bad)["skipped_step"] == 1.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.export())
    assert policy.train_step(batch)["skipped_step"] == 0.0
    assert any(not torch.equal(tensor, before[name]) for name, tensor in policy.export())


def test_the_learning_rate_is_a_function_of_the_version(build: Build) -> None:
    linear = {"lr": 1.0e-3, "min_lr": 1.0e-4, "lr_warmup_steps": 2, "lr_decay_steps": 5, "lr_decay_style": "linear"}
    policy, batch = build(optimizer=linear), make_batch(rows=2)
    bad = make_batch(rows=2)
    bad.advantages[0] = float("nan")
    rates = [policy.train_step(bad if version == 2 else batch)["lr"] for version in range(6)]
    assert rates == pytest.approx([5.0e-4, 1.0e-3, 7.0e-4, 4.0e-4, 1.0e-4, 1.0e-4])


def test_several_optimizer_steps_move_away_from_the_previous_policy(build: Build) -> None:
    batch = make_batch()
    policy = build(train_global_batch_size=8)
    metrics = policy.train_step(batch)
    assert metrics["probs_ratio"] != 1.0
    assert metrics["global_valid_seqs"] == len(batch)
    with pytest.raises(ValueError, match="train_global_batch_size 7"):
        build(train_global_batch_size=7).train_step(batch)


def test_previous_log_probabilities_of_a_single_step_are_the_current_ones(build: Build) -> None:
    """Why `train_step` may save the extra pass."""
    batch = make_batch()
    policy = build()
    gap = (policy.logprobs(batch) - batch.gen_logprobs).abs()[batch.token_mask > 0]
    expected = gap.double().exp().mean().item()
    assert policy.train_step(batch)["token_mult_prob_error"] == pytest.approx(expected, rel=1e-12)


def test_the_reference_policy_is_the_first_checkpoint(build: Build) -> None:
    batch = make_batch()
    policy = build(loss={"reference_policy_kl_penalty": 0.1})
    first = policy.logprobs(batch)
    assert policy.train_step(batch)["kl_penalty"] == pytest.approx(0.0, abs=1e-9)
    digest = policy.state_digest()
    assert torch.equal(policy.reference_logprobs(batch), first)
    assert policy.state_digest() == digest
    assert policy.train_step(batch)["kl_penalty"] > 1e-6


@pytest.mark.parametrize(
    ("dtype", "distributed"), [("float32", False), ("float32", True), ("bfloat16", False), ("bfloat16", True)]
)
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(dtype: str, distributed: bool, tmp_path: Path, build: Build) -> None:
    schedule = {"lr_decay_style": "cosine", "lr_warmup_steps": 2}
    keys = {"dtype": dtype, "use_distributed_optimizer": distributed, "optimizer": OPTIMIZER | schedule}
    whole, batches = build(**keys), [make_batch(seed=seed) for seed in range(3)]
    start = whole.state_digest()
    whole.save(tmp_path / "0")
    metrics = []
    for version, batch in enumerate(batches):
        metrics.append(whole.train_step(batch))
        if version == 0:
            whole.save(tmp_path / "1")
    resumed = build(**keys)
    resumed.train_step(batches[2])
    for version in (1, 0):
        resumed.load(tmp_path / str(version))
        assert (resumed.state_digest() == start) == (version == 0)
        assert [resumed.train_step(batch) for batch in batches[version:]] == metrics[version:]
        assert resumed.state_digest() == whole.state_digest()
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(whole.export(), resumed.export(), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_hugging_face_export_loads_in_transformers(dtype: str, tmp_path: Path, build: Build) -> None:
    policy = build(dtype=dtype)
    policy.train_step(make_batch())
    for _ in range(2):
        policy.save_hf(tmp_path / "hf" / "step_00000001")
    saved = tmp_path / "hf" / "step_00000001"
    model = AutoModelForCausalLM.from_pretrained(saved)
    assert model.dtype == getattr(torch, dtype)
    assert (saved / "tokenizer.json").read_text() == "{}"
    assert [path.name for path in saved.parent.iterdir()] == ["step_00000001"]
    found = model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in policy.export())
    if dtype == "float32":
        tokens = list(range(5, 30))
        with torch.no_grad():
            expected = hf_logprobs(model, torch.tensor([tokens]))[0, 1:].tolist()
        assert policy.probe_logprobs(tokens) == pytest.approx(expected, abs=1e-4)


def test_models_that_do_not_convert_are_refused_with_the_reason(tmp_path: Path, build: Build) -> None:
    path = make_model(tmp_path / "m", "llama")
    config = path / "config.json"
    config.write_text(config.read_text().replace('"attention_bias": false', '"attention_bias": true'))
    with pytest.raises(ConfigError, match="attention_bias True"):
        build(path=path)
    with pytest.raises(ConfigError, match=r"model\.path='no-such/model'.*no such folder"):
        build(path=Path("no-such/model"))


def test_a_world_of_another_size_is_refused(build: Build) -> None:
    with pytest.raises(ConfigError, match=r"learner\.nproc=2: 1 processes were started"):
        build(nproc=2)


@pytest.mark.parametrize(("dtype", "distributed"), [("float32", False), ("bfloat16", True)])
def test_what_is_written_in_the_background_is_the_state_of_the_moment(
    dtype: str, distributed: bool, tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is written before another step has changed everything in place."""
    free = threading.Event()
    write = FileSystemWriterAsync.write_preloaded_data

    def held(*args: object, **keys: object) -> None:
        assert free.wait(60)
        write(*args, **keys)

    monkeypatch.setattr(FileSystemWriterAsync, "write_preloaded_data", staticmethod(held))
    policy, batch = build(dtype=dtype, use_distributed_optimizer=distributed), make_batch()
    policy.train_step(batch)
    then = policy.state_digest()
    writing = policy.begin_save(tmp_path, background=True)
    policy.train_step(batch)
    assert policy.state_digest() != then
    assert not writing.wait(0.0)
    free.set()
    assert writing.wait(60.0)
    writing.finish()
    policy.load(tmp_path)
    assert policy.state_digest() == then


@pytest.mark.parametrize("background", [False, True])
def test_files_that_cannot_be_written_are_an_error_of_the_system(
    background: bool, tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(filesystem_async, "_write_item", full)
    writing = build().begin_save(tmp_path, background=background)
    with pytest.raises(OSError, match=r"rank 0: .*No space left on device"):
        writing.finish()


def test_an_export_that_cannot_be_written_is_an_error_of_the_system_and_leaves_the_last_one(tmp_path: Path, build: Build) -> None:
    policy, folder = build(), tmp_path / "hf"
    policy.save_hf(folder)
    whole = {path.name: path.stat().st_size for path in folder.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole["model.safetensors"] // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            policy.save_hf(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == whole
    assert [path.name for path in tmp_path.iterdir() if "hf" in path.name] == ["hf"]


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_loaded(tmp_path: Path, build: Build) -> None:
    build().save(tmp_path / "saved")
    other = build(path=make_model(tmp_path / "llama", "llama"))
    before = other.state_digest()
    with pytest.raises(
        WeirError, match=r"saved is of another model: .* the model has .*; use the model\.path that it was made with"
    ):
        other.load(tmp_path / "saved")
    assert other.state_digest() == before


def test_a_checkpoint_whose_index_is_damaged_is_one_error(tmp_path: Path, build: Build) -> None:
    policy = build()
    policy.save(tmp_path)
    (tmp_path / "megatron" / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(WeirError, match=rf"the checkpoint {tmp_path} cannot be read"):
        policy.load(tmp_path)
