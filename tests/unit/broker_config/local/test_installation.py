from __future__ import annotations

from pathlib import Path

import pytest

from broker_config.local.installation import Installation, installed
from schemas.errors import ConfigError


def test_a_kafka_home_without_kafka_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="KAFKA_HOME"):
        installed()


def test_the_class_archive_belongs_to_one_java_and_one_list_of_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path))
    java = tmp_path / "java"
    java.write_text("")
    one = Installation(java, (tmp_path / "one.jar",))
    other = Installation(java, (tmp_path / "other.jar",))
    assert one.archive != other.archive
    assert one.archive == Installation(java, (tmp_path / "one.jar",)).archive
