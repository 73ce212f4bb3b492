"""Checkpoint folders: which are whole, and letting old ones go."""

import logging
from pathlib import Path

import pytest

from learner.checkpoint import folders
from tests.fakes.learner.checkpoints import DAMAGES, damage, manifest, save


def test_a_saved_checkpoint_is_found_with_its_manifest(tmp_path: Path) -> None:
    folder = save(tmp_path / "checkpoints", 12)
    assert folder.name == "step_00000012"
    assert folders.latest(tmp_path / "checkpoints") == (folder, folders.read(folder))
    found = folders.read(folder)
    assert found.files == {"megatron/__0_0.distcp": 7}
    assert found.model_copy(update={"files": {}, "created": ""}) == manifest(12).model_copy(update={"created": ""})
    assert [path.name for path in folder.parent.iterdir()] == ["step_00000012"]


def test_the_newest_is_taken_up_to_a_bound(tmp_path: Path) -> None:
    assert folders.latest(tmp_path / "none") is None
    for version in (10, 2, 0):
        save(tmp_path, version)
    assert [found[1].version for bound in (None, 9, 0) if (found := folders.latest(tmp_path, at_most=bound))] == [10, 2, 0]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_named(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1)
    damage(save(tmp_path, 2), how)
    with caplog.at_level(logging.WARNING):
        found = folders.latest(tmp_path)
    assert found is not None
    assert found[1].version == 1
    assert "step_00000002" in caplog.text


def test_prune_keeps_the_newest_whole_ones(tmp_path: Path) -> None:
    for version in range(5):
        save(tmp_path, version)
    damage(tmp_path / "step_00000004", "no manifest")
    assert folders.prune(tmp_path, None) == []
    assert folders.prune(tmp_path, 2) == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000002", "step_00000003", "step_00000004"]
    with pytest.raises(ValueError, match="at least one"):
        folders.prune(tmp_path, 0)


def test_a_manifest_is_replaced_and_the_state_stays(tmp_path: Path) -> None:
    folder = save(tmp_path, 2)
    there = folders.read(folder)
    folders.rewrite_manifest(folder, there.model_copy(update={"topic_ids": {"r.control": "b"}}))
    assert folders.read(folder) == there.model_copy(update={"topic_ids": {"r.control": "b"}})
