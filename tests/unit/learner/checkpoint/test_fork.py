"""`run.fork_from`: which checkpoint a run starts from, and what stands against it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.config.rules import Machine, RuleContext, fork_is_possible
from learner.checkpoint import folders
from learner.checkpoint.fork import check_forked, find_fork
from learner.checkpoint.manifest import Determinism, Manifest, Offsets
from learner.dump.index import Index, seal_off
from schemas.config.config import Config
from schemas.config.file import build
from schemas.errors import ConfigError, Problem, WeirError
from tests.fakes.learner import saved
from tests.fakes.records.runs import raw_config


def model(folder: Path, hidden: int = 64) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": hidden}))
    return str(folder)


def config(tmp_path: Path, **changes: object) -> Config:
    run = {"name": "tiny", "id": "old", "dir": str(tmp_path / "runs")}
    return build(raw_config(**{"run": run, "model__path": model(tmp_path / "model"), **changes}))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run with a checkpoint of version 4."""
    home = tmp_path / "runs" / "old"
    home.mkdir(parents=True)
    (home / "config.yaml").write_text(config(tmp_path).to_yaml())
    facts = Determinism(torch="2", megatron="0", transformers="5", device="cpu", cpu_capability="A", threads=1,
        data_parallel_size=1, tensor_model_parallel_size=1, pipeline_model_parallel_size=1, train_micro_batch_size=1,
        deterministic=True)  # fmt: skip
    manifest = Manifest(run="u", version=4, incarnation=0, topic_ids={}, next_offsets=Offsets(control=0, status=0),
        state_digest="s", weights_digest="w", config_digest="c", determinism=facts)  # fmt: skip
    saved.save(home / "checkpoints", manifest, save)
    return home


def save(folder: Path) -> None:
    (folder / "megatron").mkdir()
    (folder / "megatron" / "__0_0.distcp").write_bytes(b"moments")


def fork(tmp_path: Path, run: str, step: int, **changes: object) -> Config:
    made = config(tmp_path, **changes)
    new = {**made.run.model_dump(), "id": "new", "fork_from": {"run": run, "step": step}}
    return build({**{name: section.model_dump() for name, section in made.sections.items()}, "run": new})


def problems(file: Config) -> list[Problem]:
    """What the check before the start finds."""
    return list(fork_is_possible(RuleContext(file, Machine(gpu=False, bootstrap=None))))


def test_a_run_without_the_key_is_no_fork(tmp_path: Path) -> None:
    file = config(tmp_path)
    assert find_fork(file.run, file.model) is None


def test_the_other_run_is_found_by_its_id_or_its_folder(tmp_path: Path, old: Path) -> None:
    for name in ("old", str(old)):
        file = fork(tmp_path, name, 4, loss_fn__ratio_clip_max=0.3)
        assert find_fork(file.run, file.model) == old / "checkpoints" / "step_00000004"
        assert list(problems(file)) == []


def refused(file: Config) -> str:
    (problem,) = problems(file)
    with pytest.raises(ConfigError):
        find_fork(file.run, file.model)
    return str(problem)


def test_a_run_or_step_that_is_not_there_is_named_with_what_there_is(tmp_path: Path, old: Path) -> None:
    assert "run.fork_from.run='none': no folder" in refused(fork(tmp_path, "none", 4))
    assert refused(fork(tmp_path, "old", 5)).endswith("checkpoints there: 4")
    (old / "checkpoints" / "step_00000004" / "manifest.json").write_text("{")
    assert "manifest.json cannot be read" in refused(fork(tmp_path, "old", 4))


def test_another_model_is_refused(tmp_path: Path, old: Path) -> None:
    assert "another model than" in refused(fork(tmp_path, "old", 4, model__path=model(tmp_path / "wide", 128)))
    assert "model.dtype='bfloat16'" in refused(fork(tmp_path, "old", 4, model__dtype="bfloat16"))


def test_run_and_step_belong_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.fork_from: run and step belong together"):
        build(raw_config(run={"name": "tiny", "fork_from": {"run": "old"}}))


# --- bytes that changed -----------------------------------------------------------------------------------------------------


@pytest.fixture
def dumped(old: Path) -> Path:
    """The other run as a dump."""
    index = Index(run_id="old", uuid="u", config_digest="c", prompts_per_step=1, checkpoint=4, last=4, topics={})
    (old / "model").mkdir()
    (old / "model" / "config.json").write_text(json.dumps({"hidden_size": 64}))
    (old / "topics").mkdir()
    (old / "topics" / "metrics.msgpack").write_bytes(b"records")
    seal_off(old, index)
    return old


def test_a_dump_of_whose_checkpoint_a_byte_changed_is_refused(tmp_path: Path, dumped: Path) -> None:
    file = fork(tmp_path, str(dumped), 4)
    assert find_fork(file.run, file.model) == dumped / "checkpoints" / "step_00000004"
    (dumped / "checkpoints" / "step_00000004" / "megatron" / "__0_0.distcp").write_bytes(b"momentS")
    assert "__0_0.distcp: has sha256" in refused(file)


@pytest.mark.parametrize("name", ["config.yaml", "model/config.json", "checkpoints/step_00000004/manifest.json"])
def test_any_file_of_a_dump_that_a_fork_reads_is_looked_at(tmp_path: Path, dumped: Path, name: str) -> None:
    (dumped / name).write_text((dumped / name).read_text() + " ")
    assert f"{name}: has sha256" in refused(fork(tmp_path, str(dumped), 4))


def test_what_a_fork_does_not_read_of_a_dump_does_not_matter(tmp_path: Path, dumped: Path) -> None:
    (dumped / "topics" / "metrics.msgpack").unlink()
    assert list(problems(fork(tmp_path, str(dumped), 4))) == []


def test_what_was_loaded_must_be_what_was_saved_where_the_layout_is_the_same(tmp_path: Path, old: Path) -> None:
    folder = old / "checkpoints" / "step_00000004"
    here, learner = folders.read(folder).determinism, config(tmp_path).learner
    check_forked(folder, learner, here, "s")
    with pytest.raises(WeirError, match=r"step_00000004 holds state other, its manifest says s: its files were changed"):
        check_forked(folder, learner, here, "other")
    check_forked(folder, learner, here.model_copy(update={"tensor_model_parallel_size": 2}), "other")
    check_forked(folder, learner.model_copy(update={"use_distributed_optimizer": True}), here, "other")
