"""`run.fork_from`: which checkpoint a run starts from, and what stands against it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.config import RunFile, dump, parse
from launch.fork import fork_problems
from learner import checkpoint
from learner.checkpoint import Determinism, Manifest, Offsets
from learner.fork import find_fork
from schemas.errors import ConfigError
from tests.fakes.runs import raw_config


def model(folder: Path, hidden: int = 64) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": hidden}))
    return str(folder)


def config(tmp_path: Path, **changes: object) -> RunFile:
    run = {"name": "tiny", "id": "old", "dir": str(tmp_path / "runs")}
    return parse(raw_config(**{"run": run, "model__path": model(tmp_path / "model"), **changes}))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run with a checkpoint of version 4."""
    home = tmp_path / "runs" / "old"
    home.mkdir(parents=True)
    (home / "config.yaml").write_text(dump(config(tmp_path)))
    facts = Determinism.model_construct(torch="2", megatron="0", transformers="5", device="cpu", cpu_capability="A", threads=1,
        data_parallel_size=1, tensor_model_parallel_size=1, pipeline_model_parallel_size=1, train_micro_batch_size=1,
        deterministic=True)  # fmt: skip
    manifest = Manifest(run="u", version=4, incarnation=0, topic_ids={}, next_offsets=Offsets(control=0, status=0),
        state_digest="s", weights_digest="w", config_digest="c", determinism=facts)  # fmt: skip
    checkpoint.save(home / "checkpoints", manifest, lambda folder: None, rank=0, barrier=lambda: None)
    return home


def fork(tmp_path: Path, run: str, step: int, **changes: object) -> RunFile:
    made = config(tmp_path, **changes)
    new = {**made.run.model_dump(), "id": "new", "fork_from": {"run": run, "step": step}}
    return parse({**{name: section.model_dump() for name, section in made.sections.items()}, "run": new})


def test_a_run_without_the_key_is_no_fork(tmp_path: Path) -> None:
    file = config(tmp_path)
    assert find_fork(file.run, file.model) is None


def test_the_other_run_is_found_by_its_id_or_its_folder(tmp_path: Path, old: Path) -> None:
    for name in ("old", str(old)):
        file = fork(tmp_path, name, 4, loss_fn__ratio_clip_max=0.3)
        assert find_fork(file.run, file.model) == old / "checkpoints" / "step_00000004"
        assert list(fork_problems(file.run, file.model)) == []


def refused(file: RunFile) -> str:
    (problem,) = fork_problems(file.run, file.model)
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
        parse(raw_config(run={"name": "tiny", "fork_from": {"run": "old"}}))
