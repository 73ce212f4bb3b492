"""The keys of a run's file are what people have typed into theirs: they are added, and not renamed by accident."""

from __future__ import annotations

from pathlib import Path

from schemas.config.config import key_paths

GOLDEN = Path(__file__).parent / "golden" / "config_keys.txt"


def test_the_key_set_is_the_golden_one() -> None:
    golden = GOLDEN.read_text(encoding="utf-8").split()
    assert key_paths() == golden, (
        "write the new set with: python -c 'from schemas.config.config import key_paths; print(*key_paths(), sep=chr(10))'"
    )
