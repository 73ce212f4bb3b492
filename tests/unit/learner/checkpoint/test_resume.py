"""Going on by hand: which checkpoint, and which changes of the config are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from learner.checkpoint.kept_config import keep_config
from learner.checkpoint.manifest import Manifest, Offsets
from learner.checkpoint.resume import check_config, differences, find_checkpoint
from schemas.config.config import Config
from schemas.config.file import load_for_process
from schemas.errors import ConfigError
from tests.fakes.learner import saved
from tests.fakes.learner.facts import FACTS
from tests.fakes.records.runs import raw_config


def load(tmp_path: Path, *overrides: str) -> Config:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(raw_config()), encoding="utf-8")
    return load_for_process(str(file), [f"run.dir={tmp_path}", "run.id=r", *overrides])


def manifest(run: Config, version: int = 4) -> Manifest:
    return Manifest(
        run="u", version=version, incarnation=0, topic_ids={}, next_offsets=Offsets(control=0, status=0), state_digest="s",
        weights_digest="w", config_digest=run.digest, determinism=FACTS,
    )  # fmt: skip


def save(run: Config, version: int) -> Path:
    return saved.save(run.folder / "checkpoints", manifest(run, version), lambda _: None)


@pytest.fixture
def before(tmp_path: Path) -> Config:
    run = load(tmp_path)
    run.folder.mkdir()
    keep_config(run)
    return run


def test_the_config_is_kept_under_its_digest_and_can_be_read_again(before: Config) -> None:
    (kept,) = before.folder.glob("config.*.yaml")
    assert kept.name == f"config.{before.digest}.yaml"
    keep_config(before)
    assert load_for_process(kept, []).digest == before.digest


def test_the_newest_whole_checkpoint_is_gone_on_from(before: Config) -> None:
    save(before, 2)
    (save(before, 4) / "manifest.json").unlink()
    folder, found = find_checkpoint(before)
    assert (folder.name, found.version) == ("step_00000002", 2)


def test_a_run_that_has_trained_more_than_it_is_to_have_does_not_go_on(before: Config, tmp_path: Path) -> None:
    save(before, before.grpo.max_num_steps or 0)
    find_checkpoint(before)
    fewer = load(tmp_path, f"grpo.max_num_steps={(before.grpo.max_num_steps or 0) - 1}")
    with pytest.raises(ConfigError, match=r"grpo\.max_num_steps=.*: the newest checkpoint is of version"):
        find_checkpoint(fewer)


def test_without_a_whole_checkpoint_all_damages_are_named(before: Config) -> None:
    with pytest.raises(ConfigError, match=r"--resume='r': .*checkpoints has no whole checkpoint; start the run anew"):
        find_checkpoint(before)
    for version in (2, 4):
        (save(before, version) / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"no whole checkpoint: .*step_00000002.*cannot be read.*step_00000004.*cannot be read"):
        find_checkpoint(before)


def test_every_key_that_cannot_change_is_named_with_both_values(before: Config, tmp_path: Path) -> None:
    now = load(tmp_path, "learner.optimizer.lr=0.5", "grpo.num_prompts_per_step=8", "logger.wandb=true")
    with pytest.raises(ConfigError) as refused:
        check_config(now, manifest(before))
    assert {problem.key: problem.value for problem in refused.value.problems} == {
        "grpo.num_prompts_per_step": 8,
        "learner.optimizer.lr": 0.5,
    }
    assert "it was 16" in str(refused.value)


@pytest.mark.parametrize(
    "change", ["logger.wandb=true", "grpo.max_num_steps=99", "refit.phase_timeout_s=20", "learner.rank_timeout_s=300"]
)
def test_what_no_step_depends_on_may_change(change: str, before: Config, tmp_path: Path) -> None:
    check_config(load(tmp_path, change), manifest(before))


def test_a_decay_that_follows_the_last_step_may_move_with_it(tmp_path: Path) -> None:
    decay = "learner.optimizer.lr_decay_style=linear"
    before, now = load(tmp_path, decay), load(tmp_path, decay, "grpo.max_num_steps=99")
    assert now.digest != before.digest
    before.folder.mkdir()
    keep_config(before)
    check_config(now, manifest(before))


def test_a_change_that_cannot_be_named_is_refused_all_the_same(before: Config, tmp_path: Path) -> None:
    next(before.folder.glob("config.*.yaml")).unlink()
    with pytest.raises(ConfigError, match=rf"config\.{before.digest}\.yaml is not there; use the run's own config"):
        check_config(load(tmp_path, "learner.optimizer.lr=0.5"), manifest(before))


def test_other_facts_of_the_arithmetic_are_named() -> None:
    now = FACTS.model_copy(update={"threads": 4, "torch": "3"})
    assert differences(FACTS, now) == ["torch 2 -> 3", "threads 1 -> 4"]
    assert differences(FACTS, FACTS) == []
