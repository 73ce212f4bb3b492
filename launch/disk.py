"""Failures of the file system in words: a full disk, a folder that cannot be written, a file that is gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from schemas.errors import WeirError


def explain(error: OSError) -> str:
    """One line; of a copy that failed at several files the first one."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        failed = error.args[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"{failed[0][2]}{more}"
    return str(error)


@contextmanager
def told(what: str) -> Iterator[None]:
    """
    Raises:
        WeirError: in place of an error of the file system; `what` failed.
    """
    try:
        yield
    except OSError as error:
        raise WeirError(f"{what}: {explain(error)}") from error
