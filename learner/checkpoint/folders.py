"""Checkpoint folders: `checkpoints/step_00000012/` is whole or does not exist.

Megatron writes into `step_00000012.<incarnation>.tmp`; every rank makes its files durable; rank 0 writes `manifest.json` last and
renames the folder onto a name that must not exist. A folder whose manifest is missing, or names a file that is missing or of
another size, is damaged: it is never loaded, and named in a warning. Reading manifests needs neither torch nor megatron.

Saving has three parts, so that training can go on between them: `begin` (the state is copied, or written), `Saving.finish` (all
ranks have written) and `Saving.publish` (rank 0 alone: the folder gets its manifest and its name).

The files in `megatron/` are not safe to load from strangers: they hold pickled Python objects.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from learner.link.messages import ManifestFacts
from schemas.config.learner import LearnerConfig
from schemas.disk import room
from schemas.errors import FileError, WeirError
from schemas.failpoints import reach
from schemas.records.json_record import explain

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_STEP = re.compile(r"step_(\d{8})")
_UNFINISHED = re.compile(r"step_\d{8}\.((\d+)|deleted)\.tmp")


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Offsets(Record):
    """Where a resumed learner reads on: next offsets of `control`, of `status`, and of each partition of `requests`; and of
    `metrics`: what was recorded of the steps after the checkpoint begins there."""

    control: int
    status: int
    requests: dict[int, int] = Field(default_factory=dict)
    metrics: int = 0

    @classmethod
    def of(cls, facts: ManifestFacts) -> Offsets:
        return cls(control=facts.control, status=facts.status, requests=dict(facts.requests), metrics=facts.metrics)


class Determinism(Record):
    """What a step's arithmetic depends on, besides config and seals. A replay under other facts compares with a tolerance."""

    torch: str
    megatron: str
    transformers: str
    device: str
    """`cpu` or the name of the GPU."""
    cpu_capability: str
    """Instruction set that torch's kernels were dispatched to."""
    threads: int
    data_parallel_size: int
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    train_micro_batch_size: int
    deterministic: bool


class Manifest(Record):
    """What a checkpoint is. `files` (relative path to bytes) is filled in when it is written."""

    format: Literal["weir.checkpoint/1"] = "weir.checkpoint/1"
    run: str
    version: int
    incarnation: int
    topic_ids: dict[str, str]
    next_offsets: Offsets
    state_digest: str
    weights_digest: str
    config_digest: str
    determinism: Determinism
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    files: dict[str, int] = Field(default_factory=dict)


def determinism(learner: LearnerConfig) -> Determinism:
    """The facts of this process."""
    import torch

    gpu = torch.cuda.is_available()
    return Determinism(
        torch=torch.__version__,
        megatron=package_version("megatron-core"),
        transformers=package_version("transformers"),
        device=torch.cuda.get_device_name() if gpu else "cpu",
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        data_parallel_size=learner.data_parallel_size,
        tensor_model_parallel_size=learner.tensor_model_parallel_size,
        pipeline_model_parallel_size=learner.pipeline_model_parallel_size,
        train_micro_batch_size=learner.train_micro_batch_size,
        deterministic=learner.deterministic,
    )


def step_folder(root: Path, version: int) -> Path:
    return root / f"step_{version:08d}"


class Writing(Protocol):
    """One rank's files on their way to disk."""

    def wait(self, timeout_s: float) -> bool:
        """Whether they are written, or cannot be, after `timeout_s` at most."""

    def finish(self) -> None:
        """Collective. Raises OSError: a rank could not write."""


class Saving:
    """A checkpoint that has begun. All ranks have one. `gather`: a number of each rank, for each rank."""

    def __init__(self, root: Path, version: int, incarnation: int, rank: int, gather: Callable[[int], list[int]]) -> None:
        self.version = version
        self._final = step_folder(root, version)
        self._tmp = self._final.with_name(f"{self._final.name}.{incarnation}.tmp")
        self._rank, self._gather = rank, gather
        self._writing: Writing | None = None

    def begin(self, write: Callable[[Path], Writing | None]) -> None:
        with self._told():
            with self._together():
                if self._rank == 0:
                    self._final.parent.mkdir(parents=True, exist_ok=True)
                    shutil.rmtree(self._tmp, ignore_errors=True)
                    self._tmp.mkdir()
            self._writing = write(self._tmp)

    def wait(self, timeout_s: float) -> bool:
        """Whether this rank's files are written, or cannot be, after `timeout_s` at most."""
        return self._writing is None or self._writing.wait(timeout_s)

    def finish(self) -> None:
        """Make this rank's files durable; returns when all ranks have. All call it.

        Raises:
            FileError: a rank could not write.
        """
        with self._told():
            if self._writing is not None:
                self._writing.finish()
            with self._together():
                for file in _files(self._tmp):
                    _fsync(file)

    def publish(self, manifest: Manifest, confirm: Callable[[], None] = lambda: None) -> Path:
        """Rank 0, after `finish`: the folder under its name.

        `confirm` runs right before the rename and raises when this learner may no longer write. A valid folder of the same state
        digest is kept; a damaged one becomes `.bad.<incarnation>`.

        Raises:
            FileError: the disk is full.
            WeirError: a valid checkpoint of another state already has the name.
        """
        with self._told():
            _publish(self._tmp, self._final, manifest, confirm)
        return self._final

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Collective: what fails on one rank fails on all."""
        failure: OSError | None = None
        try:
            yield
        except OSError as error:
            failure = error
        failed = [rank for rank, code in enumerate(self._gather(int(failure is not None))) if code]
        if failed:
            raise failure or OSError(f"rank {failed[0]} could not write its files")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A full disk is one clear error, and what was written of the checkpoint makes place again."""
        try:
            yield
        except OSError as error:
            if self._rank == 0:
                shutil.rmtree(self._tmp, ignore_errors=True)
            raise FileError(
                f"the checkpoint of version {self.version} was not written: {error}; {room(self._final)}; make room there "
                "(checkpointing.keep bounds how many checkpoints stay) and go on with --resume"
            ) from error


def begin(
    root: Path,
    version: int,
    incarnation: int,
    write: Callable[[Path], Writing | None],
    *,
    rank: int,
    gather: Callable[[int], list[int]],
) -> Saving:
    """Start a checkpoint. All ranks call it with their own `write`, which fills the folder it is given (`Policy.begin_save`).

    Raises:
        FileError: what is written at once cannot be.
    """
    saving = Saving(root, version, incarnation, rank, gather)
    saving.begin(write)
    return saving


def sweep(root: Path, incarnation: int) -> list[str]:
    """Remove what earlier incarnations left unfinished; returns the names. Only for who has claimed the run."""
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
    reach("learner.before_manifest")
    files = {str(file.relative_to(tmp)): file.stat().st_size for file in _files(tmp)}
    text = manifest.model_copy(update={"files": files}).model_dump_json(indent=1)
    _write_manifest(tmp, text)
    for folder in [tmp, *(path for path in tmp.rglob("*") if path.is_dir())]:
        _fsync(folder)
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
            shutil.rmtree(tmp)
            return
    tmp.rename(final)
    _fsync(final.parent)
    reach("learner.after_rename")


def rewrite_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a whole checkpoint, at once or not at all. Its state stays."""
    _write_manifest(folder, manifest.model_dump_json(indent=1))
    _fsync(folder)


def _write_manifest(folder: Path, text: str) -> None:
    part = folder / f"{MANIFEST}.part"
    part.write_text(text, encoding="utf-8")
    _fsync(part)
    part.rename(folder / MANIFEST)


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder.

    Raises:
        WeirError: the folder is damaged; the message says how.
    """
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeirError(f"{folder} has no {MANIFEST}") from None
    except ValidationError as error:
        raise WeirError(f"{folder / MANIFEST} cannot be read: {explain(error)[1].removeprefix(': ')}") from error
    except (UnicodeDecodeError, OSError) as error:
        raise WeirError(f"{folder / MANIFEST} cannot be read: {error}") from error
    for name, size in manifest.files.items():
        file = folder / name
        if not file.is_file():
            raise WeirError(f"{file} is missing")
        if file.stat().st_size != size:
            raise WeirError(f"{file} has {file.stat().st_size} bytes, {size} were written")
    if folder.name != step_folder(folder.parent, manifest.version).name:
        raise WeirError(f"{folder} holds version {manifest.version}")
    return manifest


def latest(root: Path, *, at_most: int | None = None) -> tuple[Path, Manifest] | None:
    """The newest whole checkpoint (of version `at_most` or lower), or None. Damaged ones are skipped with a warning."""
    for version in sorted(versions(root), reverse=True):
        folder = step_folder(root, version)
        if at_most is not None and version > at_most:
            continue
        try:
            return folder, read(folder)
        except WeirError as damage:
            log.warning("damaged checkpoint skipped folder=%s reason=%s", folder.name, damage)
    return None


def whole(root: Path) -> list[tuple[Path, Manifest]]:
    """All whole checkpoints, the oldest first."""
    found = []
    for version in sorted(versions(root)):
        folder = step_folder(root, version)
        try:
            found.append((folder, read(folder)))
        except WeirError:
            continue
    return found


def oldest(root: Path) -> Manifest | None:
    """The manifest of the oldest whole checkpoint."""
    return next((manifest for _, manifest in whole(root)), None)


def prune(root: Path, keep: int | None) -> list[int]:
    """Delete whole checkpoints beyond the newest `keep` (None: none) and return their versions.

    A folder is renamed before it is deleted, so that a kill leaves no half checkpoint under a valid name.
    """
    if keep is None:
        return []
    if keep < 1:
        raise ValueError(f"keep is {keep}, at least one checkpoint must stay")
    gone = whole(root)[:-keep]
    for folder, _ in gone:
        doomed = folder.with_name(f"{folder.name}.deleted.tmp")
        folder.rename(doomed)
        shutil.rmtree(doomed)
    return [manifest.version for _, manifest in gone]


def versions(root: Path) -> list[int]:
    """Versions that have a step folder, whole or not, in no order."""
    if not root.is_dir():
        return []
    return [int(match[1]) for path in root.iterdir() if (match := _STEP.fullmatch(path.name)) and path.is_dir()]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
