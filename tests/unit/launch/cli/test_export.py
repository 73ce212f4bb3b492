from __future__ import annotations

from pathlib import Path

import pytest

from launch.cli.export import copy_export
from launch.folders import make_run_folder
from schemas.errors import ConfigError, WeirError
from tests.fakes.launch.run_folders import add_checkpoint, add_export, run_config


def test_an_export_is_copied_whole(tmp_path: Path) -> None:
    folder = make_run_folder(run_config(tmp_path))
    add_export(folder, 12)
    copy_export(folder, 12, tmp_path / "out" / "model")
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    with pytest.raises(ConfigError, match="exists"):
        copy_export(folder, 12, tmp_path / "out" / "model")


def test_a_version_that_was_not_exported_says_what_there_is(tmp_path: Path) -> None:
    folder = make_run_folder(run_config(tmp_path))
    add_export(folder, 12)
    add_checkpoint(folder, 10)
    with pytest.raises(WeirError, match=r"exported versions: 12; .*only a learner can export"):
        copy_export(folder, 10, tmp_path / "out")
    with pytest.raises(WeirError, match="training checkpoints: 10"):
        copy_export(folder, 11, tmp_path / "out")
    assert not (tmp_path / "out").exists()
