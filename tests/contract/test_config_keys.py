"""The keys of a run's file are what people have typed into theirs: they are added, and not renamed by accident."""

from __future__ import annotations

from pathlib import Path

from launch.config.file import key_set

GOLDEN = Path(__file__).parent / "golden" / "config_keys.txt"


def test_the_key_set_is_the_golden_one() -> None:
    golden = GOLDEN.read_text(encoding="utf-8").split()
    assert key_set() == golden, (
        "write the new set with: python -c 'from launch.config.file import key_set; print(*key_set(), sep=chr(10))'"
    )
