"""A copy of the source tree, to which a test adds what a page of the docs shows, and a program that runs on it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.paths import ROOT

PACKAGES = ("schemas", "broker_config", "producer", "learner", "launch", "tests")
LIMIT_S = 280.0


def shown_code(page: str, number: int = 0, language: str = "python") -> str:
    """Block `number` of this language on a page of `docs/`."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return textwrap.dedent(blocks[number][1])


class SourceTree:
    """Made at `folder`; `changed` are the files that are not as in the original."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__", "data")
            shutil.copytree(ROOT / package, folder / package, ignore=ignored)
        self._before = self._files()

    def add(self, name: str, text: str) -> None:
        path = self.folder / name
        assert not path.exists(), name
        path.write_text(text, encoding="utf-8")

    def insert(self, name: str, before: str, text: str) -> None:
        """Put `text` in front of the only occurrence of `before`."""
        self.replace(name, before, text + before)

    def replace(self, name: str, old: str, new: str) -> None:
        """Put `new` in the place of the only occurrence of `old`."""
        path = self.folder / name
        was = path.read_text(encoding="utf-8")
        assert was.count(old) == 1, (name, old, was.count(old))
        path.write_text(was.replace(old, new), encoding="utf-8")

    def replace_from(self, name: str, start: str, text: str) -> None:
        """Replace everything from the only occurrence of `start` to the end of the file."""
        path = self.folder / name
        was = path.read_text(encoding="utf-8")
        assert was.count(start) == 1, (name, start, was.count(start))
        path.write_text(was[: was.index(start)] + text, encoding="utf-8")

    @property
    def changed(self) -> list[str]:
        now = self._files()
        return sorted(name for name in now.keys() | self._before.keys() if now.get(name) != self._before.get(name))

    def run(self, program: str, *arguments: object) -> str:
        """What a Python program prints that imports the packages from here; it must end well."""
        env = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
        ran = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert ran.returncode == 0, ran.stderr[-4000:]
        return ran.stdout

    def _files(self) -> dict[str, str]:
        """Digest of every source file."""
        found = {}
        for path in self.folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found[str(path.relative_to(self.folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found
