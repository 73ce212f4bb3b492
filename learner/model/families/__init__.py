"""Model families: everything that the learner knows of one kind of model, a file each, named after config.json's `model_type`.

To add a family is to add a file with a `FAMILY` in it; no other file changes. docs/models.md does it step by step.

Nothing here imports torch before a model is built: the config check asks which families there are before anything starts.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from learner.model.families.family import Family
from schemas.errors import ConfigError, Problem

_SHARED = frozenset({"family", "forms"})
"""Modules of this folder that are no family. `forms`: how a tensor of a checkpoint lies in the parameters of the ranks."""


def known_families() -> tuple[str, ...]:
    """The `model_type`s that can be trained, in alphabetical order: the names of the files beside this one."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _SHARED))


def find_family(model_type: str | None, folder: str) -> Family:
    """The family of a checkpoint, given config.json's `model_type` and the checkpoint's folder (for the error).

    Raises:
        ConfigError: no such family.
    """
    problem = unknown_family(model_type, folder)
    if problem is not None:
        raise ConfigError([problem])
    family: Family = import_module(f"{__name__}.{_module(model_type or '')}").FAMILY
    return family


def unknown_family(model_type: str | None, folder: str) -> Problem | None:
    """What is wrong with a `model_type` (None: config.json has none), or None if there is a family of it."""
    known = known_families()
    if model_type is not None and _module(model_type) in known:
        return None
    why = "its config.json names no model_type" if model_type is None else f"its config has model_type {model_type!r}"
    return Problem("model.path", folder, why, f"the learner knows {', '.join(known)}; docs/models.md says how to add one")


def _module(model_type: str) -> str:
    # A few model types have a hyphen, which no Python module can have.
    return model_type.replace("-", "_")
