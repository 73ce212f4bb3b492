"""The processes of `weir replay`: their report, and where they may leave something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from broker_config.locate import ENVIRONMENT
from launch.archive.replay import follow_report, replay_environment


def test_a_report_is_followed_as_it_grows_without_its_torn_end(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    report.write_text(json.dumps({"line": "a"}) + "\n" + '{"li')
    asked = iter([False, True])

    def over() -> bool:
        last = next(asked)
        if last:
            with report.open("a") as file:
                file.write('ne": "b"}\n{"torn')
        return last

    assert list(follow_report(report, over)) == [{"line": "a"}, {"line": "b"}]


def test_what_the_processes_leave_goes_with_the_command(tmp_path: Path) -> None:
    env = replay_environment(tmp_path, None)
    code = "import tempfile; print(tempfile.mkdtemp(prefix='weir-replay-'))"
    made = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    assert Path(made.strip()).parent == tmp_path
    assert env.get(ENVIRONMENT) == os.environ.get(ENVIRONMENT)
    assert replay_environment(tmp_path, "broker:1")[ENVIRONMENT] == "broker:1"
