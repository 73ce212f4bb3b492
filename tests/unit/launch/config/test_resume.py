from __future__ import annotations

from pathlib import Path

import pytest

from launch.config.resume import load_resumed
from launch.folders import make_run_folder
from schemas.config.config import resumable
from schemas.errors import ConfigError
from tests.fakes.launch.run_folders import add_checkpoint, run_config


def test_a_run_without_a_checkpoint_cannot_be_resumed(tmp_path: Path) -> None:
    make_run_folder(run_config(tmp_path))
    with pytest.raises(ConfigError, match="no whole checkpoint"):
        load_resumed(None, [], tmp_path)


def test_a_run_is_resumed_with_its_own_config_and_what_may_change(tmp_path: Path) -> None:
    folder = make_run_folder(run_config(tmp_path))
    add_checkpoint(folder, 10)
    found, checked = load_resumed("tiny-1", ["grpo.max_num_steps=80", "producer.count=1"], tmp_path)
    assert found.run_id == checked.config.run.id == "tiny-1"
    assert (checked.config.grpo.max_num_steps, checked.config.producer.count) == (80, 1)


@pytest.mark.parametrize(
    "override", ["grpo.num_prompts_per_step=8", "learner.optimizer.lr=1.0", "run.seed=3", "model.dtype=bfloat16"]
)
def test_what_training_depends_on_cannot_change_in_a_run(tmp_path: Path, override: str) -> None:
    add_checkpoint(make_run_folder(run_config(tmp_path)), 10)
    with pytest.raises(ConfigError, match="cannot change in a resumed run"):
        load_resumed(None, [override], tmp_path)


def test_a_run_is_not_resumed_to_fewer_steps_than_it_has_trained(tmp_path: Path) -> None:
    add_checkpoint(make_run_folder(run_config(tmp_path)), 10)
    with pytest.raises(ConfigError, match=r"grpo\.max_num_steps=9: the newest checkpoint is of version 10; give 10 or more"):
        load_resumed(None, ["grpo.max_num_steps=9"], tmp_path)
    assert load_resumed(None, ["grpo.max_num_steps=10"], tmp_path)[1].config.grpo.max_num_steps == 10


def test_damaged_checkpoints_are_named_where_there_is_no_whole_one(tmp_path: Path) -> None:
    folder = add_checkpoint(make_run_folder(run_config(tmp_path)), 10)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"no whole checkpoint: .*step_00000010.*manifest\.json cannot be read"):
        load_resumed(None, [], tmp_path)


def test_resumable_keys_are_known_keys() -> None:
    assert resumable("kafka.security.username")
    assert not resumable("kafka.security_x")
    assert not resumable("grpo.max_num_steps_x")
