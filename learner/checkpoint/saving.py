"""Writing one checkpoint: from the first file to the folder under its name.

Megatron writes into `step_00000012.<incarnation>.tmp`; every rank makes its files durable; rank 0 writes `manifest.json` last and
renames the folder onto a name that must not exist.

Three parts, so that training can continue between them: `begin_saving` (the state is copied, or written), `Saving.finish` (all
ranks have written) and `Saving.publish` (rank 0 alone: the folder gets its manifest and its name). The first two are collective.

The files in `megatron/` are not safe to load from strangers: they hold pickled Python objects.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from learner.checkpoint.folders import read, step_folder
from learner.checkpoint.manifest import Manifest, fsync, write_manifest
from schemas.disk import room
from schemas.errors import FileError, WeirError
from schemas.failpoints import reach

log = logging.getLogger(__name__)

# The incarnation in the name keeps two learners of one run, of which one does not know yet that it lost the run, out of each
# other's files.
_UNFINISHED = re.compile(r"step_\d{8}\.((\d+)|deleted)\.tmp")


class PendingWrite(Protocol):
    """One rank's files on their way to disk."""

    def wait(self, timeout_s: float) -> bool:
        """Whether they are written, or cannot be, after `timeout_s` at most."""

    def finish(self) -> None:
        """Complete the files; collective. Raises OSError: a rank could not write."""


class Saving:
    """A checkpoint that has begun. All ranks have one.

    Args:
        root: the run's `checkpoints/`.
        gather: collective; takes a number from each rank and returns all of them, by rank.
    """

    def __init__(self, root: Path, version: int, incarnation: int, rank: int, gather: Callable[[int], list[int]]) -> None:
        self.version = version
        self._final = step_folder(root, version)
        self._tmp = self._final.with_name(f"{self._final.name}.{incarnation}.tmp")
        self._rank, self._gather = rank, gather
        self._writing: PendingWrite | None = None

    def begin(self, write: Callable[[Path], PendingWrite | None]) -> None:
        """Make the folder and start to write; raises as `begin_saving`."""
        with self._reporting():
            with self._together():
                if self._rank == 0:
                    self._final.parent.mkdir(parents=True, exist_ok=True)
                    shutil.rmtree(self._tmp, ignore_errors=True)
                    self._tmp.mkdir()
            # Outside of `_together`: the write is collective itself, and fails on all ranks or none.
            self._writing = write(self._tmp)

    def wait(self, timeout_s: float) -> bool:
        """Whether this rank's files are written, or cannot be, after `timeout_s` at most."""
        return self._writing is None or self._writing.wait(timeout_s)

    def finish(self) -> None:
        """Make this rank's files durable; returns when all ranks have done so. All call it.

        Raises:
            FileError: a rank could not write.
        """
        with self._reporting():
            if self._writing is not None:
                self._writing.finish()
            with self._together():
                # Every rank syncs all files: on a shared file system it does not know which are its own.
                for file in _files(self._tmp):
                    fsync(file)

    def publish(self, manifest: Manifest, confirm: Callable[[], None] = lambda: None) -> Path:
        """Rank 0, after `finish`: give the folder its manifest and its name; returns the folder.

        `confirm` runs right before the rename and raises when this learner may no longer write. A whole folder of the same state
        digest is kept; a damaged one becomes `.bad.<incarnation>`.

        Raises:
            FileError: the disk is full.
            WeirError: a whole checkpoint of another state already has the name.
        """
        with self._reporting():
            _publish(self._tmp, self._final, manifest, confirm)
        return self._final

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Collective: what fails on one rank fails on all. Otherwise the others would wait in the next collective for ever."""
        failure: OSError | None = None
        try:
            yield
        except OSError as error:
            failure = error
        failed = [rank for rank, code in enumerate(self._gather(int(failure is not None))) if code]
        if failed:
            raise failure or OSError(f"rank {failed[0]} could not write its files")

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turn an OSError into one clear error, and delete what was written of the checkpoint to make room again."""
        try:
            yield
        except OSError as error:
            if self._rank == 0:
                shutil.rmtree(self._tmp, ignore_errors=True)
            raise FileError(
                f"the checkpoint of version {self.version} was not written: {error}; {room(self._final)}; make room there "
                "(checkpointing.keep bounds how many checkpoints stay) and resume with --resume"
            ) from error


def begin_saving(
    root: Path,
    version: int,
    incarnation: int,
    write: Callable[[Path], PendingWrite | None],
    *,
    rank: int,
    gather: Callable[[int], list[int]],
) -> Saving:
    """Start a checkpoint. All ranks call it with their own `write`, which fills the folder it is given (`Policy.begin_save`).

    Raises:
        FileError: the folder or the state cannot be written; a state that is written in the background fails in `finish`.
    """
    saving = Saving(root, version, incarnation, rank, gather)
    saving.begin(write)
    return saving


def sweep(root: Path, incarnation: int) -> list[str]:
    """Remove what earlier incarnations left unfinished; returns the names. Only for the learner that has claimed the run."""
    removed = []
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        match = _UNFINISHED.fullmatch(path.name)
        if match is not None and (match[2] is None or int(match[2]) < incarnation):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path.name)
    if removed:
        log.info("removed unfinished checkpoints: %s", ", ".join(removed))
    return removed


def _publish(tmp: Path, final: Path, manifest: Manifest, confirm: Callable[[], None]) -> None:
    # The order matters: files (synced by `finish`), manifest, their folders' entries, and only then the name. Whatever has the
    # name after a power cut is whole.
    reach("learner.before_manifest")
    files = {str(file.relative_to(tmp)): file.stat().st_size for file in _files(tmp)}
    write_manifest(tmp, manifest.model_copy(update={"files": files}))
    for folder in [tmp, *(path for path in tmp.rglob("*") if path.is_dir())]:
        fsync(folder)
    reach("learner.after_manifest")
    confirm()
    if final.exists():
        try:
            there = read(final)
        except WeirError as damage:
            bad = final.with_name(f"{final.name}.bad.{manifest.incarnation}")
            log.warning("damaged checkpoint renamed to=%s reason=%s", bad.name, damage)
            final.rename(bad)
        else:
            if (there.run, there.state_digest) != (manifest.run, manifest.state_digest):
                raise WeirError(
                    f"{final} holds state {there.state_digest[:16]} of run {there.run}, this learner has state "
                    f"{manifest.state_digest[:16]} of run {manifest.run} at this version; move that folder away or resume from it"
                )
            # A resumed learner saves the same versions again. The older checkpoint stays: others may be reading it.
            shutil.rmtree(tmp)
            return
    tmp.rename(final)
    fsync(final.parent)
    reach("learner.after_rename")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
