from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from launch.__main__ import parse_arguments
from schemas.errors import ConfigError
from tests.paths import ROOT


def test_a_config_and_overrides_may_come_in_any_order() -> None:
    for argv in (["a.yaml", "x.y=1", "--dry-run"], ["--dry-run", "x.y=1", "a.yaml"]):
        config, overrides, given = parse_arguments(argv)
        assert (config, overrides, given.dry_run, given.resume) == ("a.yaml", ["x.y=1"], True, None)


def test_overrides_alone_mean_the_default_config() -> None:
    config, overrides, _ = parse_arguments(["x.y=1", "z=2"])
    assert (config, overrides) == (None, ["x.y=1", "z=2"])


@pytest.mark.parametrize(
    ("argv", "run", "overrides"),
    [
        (["--resume"], "", []),
        (["--resume", "tiny-1"], "tiny-1", []),
        (["--resume", "x.y=1"], "", ["x.y=1"]),
        (["--resume", "tiny-1", "x.y=1"], "tiny-1", ["x.y=1"]),
    ],
)
def test_resume_takes_a_run_or_the_latest(argv: list[str], run: str, overrides: list[str]) -> None:
    config, found, given = parse_arguments(argv)
    assert (config, given.resume, found) == (None, run, overrides)


@pytest.mark.parametrize("argv", [["a.yaml", "b.yaml"], ["a.yaml", "--resume", "tiny-1"]])
def test_two_sources_of_a_config_are_wrong_input(argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_arguments(argv)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose setup does nothing and whose python prints where it stands and what it is given."""
    root = tmp_path / "a checkout"
    (root / "launch").mkdir(parents=True)
    (root / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "launch" / "run_cluster.sh", root / "launch")
    for path, script in (("launch/setup.sh", "exit 0"), (".venv/bin/python", 'pwd; printf "%s\\n" "$@"')):
        (root / path).write_text(f"#!/bin/sh\n{script}\n")
        (root / path).chmod(0o755)
    return root


def test_the_script_runs_at_the_root_and_finds_a_config_from_anywhere(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "my run.yaml").touch()
    command = [str(checkout / "launch" / "run_cluster.sh"), "my run.yaml", "--dry-run", "data.system_prompt=two words"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines() == [
        str(checkout),
        "-m",
        "launch",
        str(tmp_path / "my run.yaml"),
        "--dry-run",
        "data.system_prompt=two words",
    ]


def test_the_script_without_arguments_passes_none(checkout: Path) -> None:
    done = subprocess.run([str(checkout / "launch" / "run_cluster.sh")], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines() == [str(checkout), "-m", "launch"]
