"""The folder that mutmut works in: a copy of the project, and an environment of its own that also sees the project's packages."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from tests.mutation import scope

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutation"
TREE = FOLDER / "tree"
VENV = FOLDER / "venv"
MUTANTS = TREE / "mutants"
MUTMUT = "mutmut==3.8.1"  # results.py reads its files

NICENESS = 15
MARK = "WEIR_MUTATION"


class MutationFailed(Exception):
    """mutmut did not come to an end, or the scope names nothing."""


def prepare() -> None:
    """A fresh copy; what an earlier run found out is forgotten."""
    make_environment()
    shutil.rmtree(TREE, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, TREE / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    (TREE / "setup.cfg").write_text(configuration())


def make_environment() -> None:
    if (VENV / "bin" / "mutmut").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    [packages] = VENV.glob("lib/python*/site-packages")
    (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([VENV / "bin" / "python", "-m", "pip", "install", "--quiet", MUTMUT], check=True)


def configuration() -> str:
    everything = [path.name for path in TREE.iterdir() if path.name not in scope.SOURCES]
    lists: dict[str, Sequence[str]] = {
        "source_paths": scope.SOURCES,
        "only_mutate": [pattern for patterns in scope.PACKAGES.values() for pattern in patterns],
        "do_not_mutate_patterns": scope.UNMUTATED_LINES,
        "also_copy": everything,
        "pytest_add_cli_args_test_selection": [*scope.TESTS, *(f"--ignore={name}" for name in scope.LEFT_OUT)],
        "pytest_add_cli_args": ["-p", "tests.mutation.plugin", "-p", "no:cacheprovider", "-m", "not nightly"],
    }
    values = {
        # Tests use torch and threads: mutants are forked from a process that has imported the tests and run none.
        "process_isolation": "forkserver",
        # The plugin ends tests that run on; these two are for what it cannot end.
        "timeout_multiplier": 3,
        "timeout_constant": 10,
        "on_dependency_change": "ignore",
        "log_to_file": True,
    }
    lines = [f"{key} = {value}" for key, value in values.items()]
    lines += [f"{key} =" + "".join(f"\n    {item}" for item in items) for key, items in lists.items()]
    return "\n".join(["[mutmut]", *lines, ""])


def mutmut(names: Iterable[str] = ()) -> None:
    """Make the mutants if need be, and test those named, or all that have no result yet."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment.setdefault("WEIR_CACHE", str(ROOT / ".cache"))
    command = ["nice", "-n", str(NICENESS), str(VENV / "bin" / "mutmut"), "run", "--max-children", str(scope.PROCESSES), *names]
    mark = environment[MARK] = uuid.uuid4().hex
    try:
        ended = subprocess.run(command, cwd=TREE, env=environment, check=False)
    finally:
        end_strays(mark)
    if ended.returncode:
        raise MutationFailed(f"mutmut ended with {ended.returncode}; its log is {MUTANTS / 'mutmut-debug.log'}")


def end_strays(mark: str) -> None:
    """A mutant that ran out of time leaves the processes that its tests had started; all have inherited the mark."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()


def sources(patterns: Iterable[str]) -> list[Path]:
    """The modules that the patterns match, relative to the project; each pattern must match one."""
    found: set[Path] = set()
    modules = [path.relative_to(TREE) for folder in scope.SOURCES for path in (TREE / folder).rglob("*.py")]
    for pattern in patterns:
        matched = [path for path in modules if fnmatch.fnmatch(str(path), pattern)]
        if not matched:
            raise MutationFailed(f"no module matches {pattern!r}; tests/mutation/scope.py says what is mutated")
        found.update(matched)
    return sorted(found)
