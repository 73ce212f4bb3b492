"""Each folder's docstring names its modules, and nothing is imported against the arrows that it draws."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.paths import ROOT

ROOMS = [ROOT / "broker_config", ROOT / "broker_config" / "clients", ROOT / "broker_config" / "local"]
CHOOSERS = {f"broker_config.{name}" for name in ("locate", "address", "preflight", "trial")}


def modules_imported_by(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_folder_names_each_of_its_modules_once(room: Path) -> None:
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    named = [line.split()[0] for line in docstring.splitlines() if line.startswith("    ")]
    there = [file.stem for file in room.glob("*.py") if not file.stem.startswith("__")]
    folders = [folder.parent.name for folder in room.glob("*/__init__.py")]
    assert sorted(named) == sorted(there + folders)


@pytest.mark.parametrize(
    ("room", "banned"),
    [
        ("broker_config", {"producer", "learner", "launch", "torch", "vllm"}),
        ("broker_config/clients", {"broker_config.local", *CHOOSERS}),
        ("broker_config/local", {"broker_config.clients", "broker_config.topics", *CHOOSERS}),
    ],
)
def test_nothing_is_imported_against_the_arrows(room: str, banned: set[str]) -> None:
    for file in (ROOT / room).rglob("*.py"):
        imported = modules_imported_by(file)
        assert [name for name in imported if any(name == b or name.startswith(f"{b}.") for b in banned)] == [], file
