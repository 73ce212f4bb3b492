"""Failures of the file system in words: a full disk, a folder that cannot be written, a file that is gone."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import FileError

MIB = 1 << 20
_FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def means_full_disk(text: str) -> bool:
    """Whether an error text, also another program's, reports a full disk or quota."""
    return any(words in text for words in _FULL)


def explain(error: OSError) -> str:
    """The error in one line; for a copy that failed at several files, the first one."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        failed = error.args[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"{failed[0][2]}{more}"
    return str(error)


def room(folder: Path) -> str:
    """How much room there is where the folder is, or would be, in MiB."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        usage = shutil.disk_usage(there)
    except OSError as error:
        return f"how much room {folder} has is not known ({error})"
    return f"{there} has {usage.free // MIB} of {usage.total // MIB} MiB free"


@contextmanager
def file_errors(what: str, folder: Path | None = None) -> Iterator[None]:
    """Turn errors of the file system into `FileError`.

    Args:
        what: the first words of its text, such as "the metrics were not written".
        folder: the text also gives the room that is there.

    Raises:
        FileError: in place of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise FileError(f"{what}: {explain(error)}" + (f"; {room(folder)}" if folder is not None else "")) from error


def write_whole(file: Path, text: str) -> None:
    """Replace a file at once: after a crash it has either text whole. Not durable yet. Raises OSError."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, file)
