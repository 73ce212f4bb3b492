from __future__ import annotations

from pathlib import Path

import pytest

from launch.folders import find_run_folder, make_run_folder, mint_id, set_logs_aside
from schemas.config.file import load_config
from schemas.errors import ConfigError
from tests.fakes.launch.run_folders import add_checkpoint, run_config


def test_a_minted_id_is_the_name_and_the_start_time() -> None:
    run_id = mint_id("tiny", 0)
    assert run_id.startswith("tiny-19") and len(run_id) == len("tiny-19700101-000000")
    assert run_config(Path("runs"), run_id).run.id == run_id


def test_a_new_folder_holds_the_resolved_config_and_is_the_latest(tmp_path: Path) -> None:
    first, second = run_config(tmp_path, "tiny-1"), run_config(tmp_path, "tiny-2")
    make_run_folder(first)
    made = make_run_folder(second)
    assert load_config(made.config) == second
    assert find_run_folder(None, tmp_path).run_id == "tiny-2"
    assert find_run_folder("tiny-1", tmp_path).run_id == "tiny-1"
    assert find_run_folder(str(tmp_path / "tiny-1"), Path("elsewhere")).run_id == "tiny-1"


def test_a_folder_is_never_used_twice(tmp_path: Path) -> None:
    make_run_folder(run_config(tmp_path))
    with pytest.raises(ConfigError, match="exists"):
        make_run_folder(run_config(tmp_path))


def test_an_unknown_run_names_the_known_ones(tmp_path: Path) -> None:
    make_run_folder(run_config(tmp_path))
    with pytest.raises(ConfigError, match="known: tiny-1"):
        find_run_folder("other", tmp_path)


def test_logs_of_a_resumed_run_are_kept_apart(tmp_path: Path) -> None:
    folder = make_run_folder(run_config(tmp_path))
    for part in ("first", "second"):
        (folder.logs / "learner-0.log").write_text(part)
        set_logs_aside(folder)
    assert {path.name: path.read_text() for path in folder.logs.iterdir()} == {
        "learner-0.log.1": "first",
        "learner-0.log.2": "second",
    }


def test_damaged_checkpoints_and_exports_are_not_counted(tmp_path: Path) -> None:
    folder = make_run_folder(run_config(tmp_path))
    whole = add_checkpoint(folder, 10)
    (folder.path / "checkpoints" / "step_00000020").mkdir()
    (add_checkpoint(folder, 30) / "manifest.json").write_text("{")
    (folder.path / "hf" / "step_00000020").mkdir(parents=True)
    assert folder.checkpoints == [whole]
    assert folder.exports == []
