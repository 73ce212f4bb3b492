"""Which packages the launcher leaves to its processes."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.paths import ROOT

HEAVY = {"torch", "vllm", "megatron", "transformers"}
MAY_BE_HEAVY = ("launch/processes/torchrun.py", "launch/models/")
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "launch").rglob("*.py"))


def imported(source: str) -> set[str]:
    """Top-level packages that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("module", [module for module in MODULES if not module.startswith(MAY_BE_HEAVY)])
def test_no_module_imports_what_trains_or_samples(module: str) -> None:
    assert imported((ROOT / module).read_text(encoding="utf-8")) & HEAVY == set()


@pytest.mark.parametrize("module", ["launch.processes.guard", "launch.processes.keeper"])
def test_what_runs_as_long_as_a_run_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'pydantic', 'confluent_kafka', 'yaml', 'rich'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", ["launch.run", "launch.cli.app", "launch.archive.replay", "launch.archive.load"])
def test_neither_does_anything_that_they_import(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
