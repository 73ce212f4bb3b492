"""The rule for `run.fork_from`, checked before anything starts; the learner checks the same when it starts."""

from __future__ import annotations

from collections.abc import Iterator

from learner.fork import find_fork
from schemas.config import ModelConfig, RunConfig
from schemas.errors import ConfigError, Problem


def fork_problems(run: RunConfig, model: ModelConfig) -> Iterator[Problem]:
    """What stands against starting from the checkpoint that is named."""
    try:
        find_fork(run, model)
    except ConfigError as error:
        yield from error.problems
