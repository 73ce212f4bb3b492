from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_config.local import artifacts
from schemas.errors import BrokerError


def test_every_artifact_is_pinned_once_with_its_digest() -> None:
    pinned = artifacts.artifacts()
    assert len(pinned) == 92
    assert len({artifact.file_name for artifact in pinned}) == 92
    assert all(re.fullmatch(r"[0-9a-f]{64}", artifact.sha256) for artifact in pinned)
    assert {a.version for a in pinned if a.group == "org.apache.kafka"} == {"4.4.0"}


def test_a_failed_download_says_what_and_how_to_retry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEIR_MAVEN_MIRROR", "http://127.0.0.1:9/none")
    monkeypatch.setattr(artifacts, "TRIES", 1)
    with pytest.raises(BrokerError, match=r"could not download Kafka's jars: .*\.jar(.|\n)*fetch"):
        artifacts.fetch(tmp_path, lambda line: None)
    assert not artifacts.libs_folder(tmp_path).exists()
