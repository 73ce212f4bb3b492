"""The folder of downloaded and generated files: `.cache/` in the project, or the one that WEIR_CACHE names."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def cache_root() -> Path:
    """The cache folder; it may not exist yet. An installed copy, which is no checkout, uses the user's cache."""
    named = os.environ.get("WEIR_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    if (PROJECT / "pyproject.toml").is_file():
        return PROJECT / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "weir"


def kafka_cache() -> Path:
    """The folder of jars, class archives, tool scripts and the local broker."""
    return cache_root() / "kafka"
