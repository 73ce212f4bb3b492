"""What mutmut found, read from its files: the state of each mutant, and the lines that a mutant changes."""

from __future__ import annotations

import ast
import difflib
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutation import workplace

CLASS_MARK = "ǁ"


class State(StrEnum):
    KILLED = "killed"
    SURVIVED = "survived"
    TIMEOUT = "timeout"
    NO_TESTS = "no tests"
    OTHER = "other"
    """The process of the tests ended in a way of its own, for example by a signal."""
    NOT_RUN = "not run"


_STATES = {
    None: State.NOT_RUN,
    0: State.SURVIVED,
    1: State.KILLED,
    3: State.KILLED,
    5: State.NO_TESTS,
    33: State.NO_TESTS,
    36: State.TIMEOUT,
    24: State.TIMEOUT,
    -24: State.TIMEOUT,
    152: State.TIMEOUT,
}


@dataclass(frozen=True)
class Mutant:
    name: str
    module: Path
    state: State


@dataclass(frozen=True)
class Change:
    """What a mutant changes; `line` is that of the module."""

    line: int
    removed: Sequence[str]
    added: Sequence[str]
    prose: bool
    """Only the wording of a message differs."""


def mutants(modules: Sequence[Path]) -> list[Mutant]:
    found = []
    for module in modules:
        meta = workplace.MUTANTS / f"{module}.meta"
        if meta.exists():
            codes = json.loads(meta.read_text())["exit_code_by_key"]
            found += [Mutant(name, module, _STATES.get(code, State.OTHER)) for name, code in codes.items()]
    return found


class Changes:
    """Finds the changes of one module's mutants."""

    def __init__(self, module: Path) -> None:
        self._lines = (workplace.MUTANTS / module).read_text().splitlines()
        self._spans = json.loads((workplace.MUTANTS / f"{module}.spans").read_text())["spans"]
        self._functions = dict(_functions(ast.parse((workplace.TREE / module).read_text())))

    def of(self, mutant: Mutant) -> Change:
        function, _, number = mutant.name.rpartition(".")[2].rpartition("__mutmut_")
        before, after = self._text(f"{function}__mutmut_orig"), self._text(f"{function}__mutmut_{number}")
        matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
        blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
        removed = [line.strip() for _, start, end, _, _ in blocks for line in before[start:end]]
        added = [line.strip() for _, _, _, start, end in blocks for line in after[start:end]]
        return Change(self._functions[function] + blocks[0][1], removed, added, _wording(before) == _wording(after))

    def _text(self, name: str) -> list[str]:
        """From the line with `def` on, under one name for all."""
        start, end = self._spans[name]
        lines = self._lines[start - 1 : end]
        while f"def {name}" not in lines[0]:
            del lines[0]
        return [lines[0].replace(name, "f"), *lines[1:]]


def _functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The first line of each function under the name that mutmut gives it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"x_{node.name}", node.lineno
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"x{CLASS_MARK}{node.name}{CLASS_MARK}{method.name}", method.lineno


def _wording(lines: Sequence[str]) -> str:
    return ast.dump(_WithoutProse().visit(ast.parse(textwrap.dedent("\n".join(lines)))))


class _WithoutProse(ast.NodeTransformer):
    """Formatted text, and texts of several words, become `None`: so do those that a mutant made of them."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant(None)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(None) if isinstance(node.value, str) and " " in node.value else node
