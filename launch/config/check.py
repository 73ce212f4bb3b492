"""Reading and checking a run's file as a whole: every problem in the sections and between them, in one error.

A rule that needs a section which could not be read is left out. The others are still applied, so that a person can fix everything
at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from launch.config import rules
from launch.config.model_facts import read_model_facts
from launch.config.rules import Machine, Rule, RuleContext
from schemas.config import file as config_file
from schemas.config.config import SECTIONS, Config
from schemas.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """A file without errors, and what is probably not meant in it."""

    config: Config
    warnings: Sequence[Problem]


def load_checked(
    path: str | Path, overrides: Sequence[str] = (), *, machine: Machine | None = None, resuming: bool = False
) -> CheckedConfig:
    """Read a run's file and check all of it.

    Raises:
        ConfigError: every problem of the sections and between them.
    """
    return check_raw(config_file.read(path, overrides), machine=machine, resuming=resuming)


def check_raw(raw: Mapping[str, Any], *, machine: Machine | None = None, resuming: bool = False) -> CheckedConfig:
    """`load_checked` for a mapping that was already read.

    Raises:
        ConfigError: as there.
    """
    parsed, problems = config_file.parse(raw)
    config = Config(**parsed) if len(parsed) == len(SECTIONS) else cast(Config, _Partial(parsed))
    model = read_model_facts(Path(parsed["model"].path)) if "model" in parsed else None
    context = RuleContext(config, machine or Machine.here(), resuming, model)
    problems += _apply(rules.ERRORS, context)
    if problems:
        raise ConfigError(problems)
    return CheckedConfig(config, _apply(rules.WARNINGS, context))


class _SectionUnread(Exception):
    """A rule asked for a section that could not be read."""


class _Partial:
    """The sections that could be read, under the names of `Config`."""

    def __init__(self, parsed: Mapping[str, Any]) -> None:
        self._parsed = parsed

    def __getattr__(self, name: str) -> Any:
        if name not in self._parsed:
            raise _SectionUnread(name)
        return self._parsed[name]

    @property
    def folder(self) -> Path:
        return Path(self.run.dir) / str(self.run.id)


def _apply(all_rules: Sequence[Rule], context: RuleContext) -> list[Problem]:
    found: list[Problem] = []
    for rule in all_rules:
        try:
            found += list(rule(context))
        except _SectionUnread:
            continue
    return found
