"""`weir replay`: what is asked of it before anything is started, and where its processes may leave something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker_config.locate import ENVIRONMENT
from launch.cli.replay_commands import replay
from launch.replay import environment
from schemas.errors import ConfigError
from tests.fakes.replays import run_folder


def test_a_run_is_no_dump(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "runs", {4: 1})
    with pytest.raises(ConfigError, match=r"dump='.*/r': has no index\.json; give a folder that weir dump made"):
        replay(step=4, to=None, run=None, from_=folder, group=None, sets=None)


def test_what_the_processes_leave_goes_with_the_command(tmp_path: Path) -> None:
    env = environment(tmp_path, None)
    code = "import tempfile; print(tempfile.mkdtemp(prefix='weir-replay-'))"
    made = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    assert Path(made.strip()).parent == tmp_path
    assert env.get(ENVIRONMENT) == os.environ.get(ENVIRONMENT)
    assert environment(tmp_path, "broker:1")[ENVIRONMENT] == "broker:1"
