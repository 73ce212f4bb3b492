"""Names of the user's own code in a config, `module:attribute`: importing what they name, or looking whether it is there."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError, Problem

SHOWN = 20


def import_named(name: str, key: str) -> Any:
    """What `module:attribute` names. `key`: the config's key, for errors.

    Raises:
        ConfigError: the module cannot be imported, or has no such attribute.
    """
    module_name, _, attribute = name.partition(":")
    module = _import(name, key, module_name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        names = [n for n in vars(module) if not n.startswith("_")]
        raise _no_attribute(name, key, f"{module_name} ({module.__file__})", attribute, names) from None


def look_for_named(name: str, key: str) -> list[Problem]:
    """What is wrong with `module:attribute`, as far as it shows without running the module (which may import torch)."""
    module_name, _, attribute = name.partition(":")
    _see_working_folder()
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return [Problem(key, name, f"module {module_name} not found", _where())]
    if spec.origin is None or not spec.origin.endswith(".py"):
        return []
    try:
        body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError) as error:
        return [Problem(key, name, f"module {module_name} ({spec.origin}) cannot be read: {error}", "fix the module")]
    names = [n for node in body for n in _names(node)]
    if "*" in names or attribute in names:
        return []
    return list(_no_attribute(name, key, f"{module_name} ({spec.origin})", attribute, names).problems)


def _names(node: ast.stmt) -> list[str]:
    """What a statement at the top of a module defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        case ast.AnnAssign():
            return [node.target.id] if isinstance(node.target, ast.Name) else []
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        case ast.If() | ast.Try() | ast.With():
            return [n for inner in ast.walk(node) if inner is not node and isinstance(inner, ast.stmt) for n in _names(inner)]
        case _:
            return []


def _see_working_folder() -> None:
    # An installed command does not have the working folder on its path; `python -m` has. Both find a user's module there.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


def _import(name: str, key: str, module_name: str) -> Any:
    _see_working_folder()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError([Problem(key, name, f"module {error.name} not found", _where())]) from None
        problem = Problem(key, name, f"importing {module_name} failed: {error}", f"install {error.name}")
        raise ConfigError([problem]) from error
    except Exception as error:
        # Somebody's module: whatever it raises, it cannot be used.
        at = traceback.extract_tb(error.__traceback__)[-1]
        why = f"importing {module_name} failed: {type(error).__name__}: {error} ({at.filename}:{at.lineno})"
        raise ConfigError([Problem(key, name, why, "fix the module")]) from error


def _where() -> str:
    return f"put it into {os.getcwd()} or on PYTHONPATH"


def _no_attribute(name: str, key: str, module: str, attribute: str, names: list[str]) -> ConfigError:
    near = difflib.get_close_matches(attribute, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(names)[:SHOWN]) or 'nothing'}"
    return ConfigError([Problem(key, name, f"module {module} has no {attribute}", hint)])
