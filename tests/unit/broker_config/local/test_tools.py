from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from broker_config.local.installation import Installation
from broker_config.local.tools import TOOLS, write_wrappers


def test_wrappers_quote_their_paths_and_name_the_broker_only_where_one_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "a folder with spaces"
    monkeypatch.setenv("WEIR_CACHE", str(cache))
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    java = cache / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    java.chmod(0o755)
    folder = write_wrappers(Installation(java, (cache / "one.jar",)))
    assert sorted(file.name for file in folder.glob("*.sh")) == sorted(TOOLS)

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([folder / name, *arguments], capture_output=True, text=True, check=False)

    unknown = run("kafka-topics.sh", "--list")
    assert unknown.returncode == 2 and "weir broker start" in unknown.stderr
    record = cache / "kafka" / "broker" / "bootstrap"
    record.parent.mkdir(parents=True)
    record.write_text("127.0.0.1:29092\n")
    filled = run("kafka-topics.sh", "--describe", "--topic", "a b").stdout.splitlines()
    assert filled[-5:] == ["--bootstrap-server", "127.0.0.1:29092", "--describe", "--topic", "a b"]
    assert str(cache / "one.jar") in filled
    given = run("kafka-topics.sh", "--list", "--bootstrap-server", "h:1").stdout.splitlines()
    assert given[-3:] == ["--list", "--bootstrap-server", "h:1"]
    assert run("kafka-dump-log.sh", "--files", "x").stdout.splitlines()[-2:] == ["--files", "x"]
