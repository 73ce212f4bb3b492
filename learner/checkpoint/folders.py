"""Checkpoint folders on disk: which there are, which are whole, and deleting old ones.

`checkpoints/step_00000012/` is whole or does not exist. A folder whose manifest is missing, or names a file that is missing or of
another size, is damaged: it is never loaded, and a warning names it. Nothing here needs torch or megatron. `saving.py` writes.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

from pydantic import ValidationError

from learner.checkpoint.manifest import MANIFEST, Manifest, fsync, write_manifest
from schemas.errors import WeirError
from schemas.records.json_record import explain

log = logging.getLogger(__name__)

_STEP = re.compile(r"step_(\d{8})")


def step_folder(root: Path, version: int) -> Path:
    """The folder of a version's checkpoint below `root`, the run's `checkpoints/`."""
    return root / f"step_{version:08d}"


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder whose files are all there.

    Sizes are compared, not bytes: hashing gigabytes at each start would take minutes, and what is loaded must have the manifest's
    state digest anyway.

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
    # A folder that somebody renamed would be taken for another version's state, and its seals trained twice or not at all.
    if folder.name != step_folder(folder.parent, manifest.version).name:
        raise WeirError(f"{folder} holds version {manifest.version}")
    return manifest


def rewrite_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a whole checkpoint, at once or not at all. Its state is kept. Raises OSError."""
    write_manifest(folder, manifest)
    fsync(folder)


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
    """All whole checkpoints, the oldest first. Damaged ones are left out silently: `latest` names them."""
    found = []
    for version in sorted(versions(root)):
        folder = step_folder(root, version)
        try:
            found.append((folder, read(folder)))
        except WeirError:
            continue
    return found


def oldest(root: Path) -> Manifest | None:
    """The manifest of the oldest whole checkpoint, or None."""
    return next((manifest for _, manifest in whole(root)), None)


def prune(root: Path, keep: int | None) -> list[int]:
    """Delete whole checkpoints beyond the newest `keep` (None: keep all); returns the versions of the deleted ones.

    Only whole ones are counted and deleted: a damaged one is evidence, and counting it could leave no checkpoint to resume from.

    Raises:
        OSError
    """
    if keep is None:
        return []
    if keep < 1:
        raise ValueError(f"keep is {keep}, at least one checkpoint must stay")
    gone = whole(root)[:-keep]
    for folder, _ in gone:
        # Out of its valid name before anything is deleted: a kill in between leaves no half checkpoint under it.
        doomed = folder.with_name(f"{folder.name}.deleted.tmp")
        folder.rename(doomed)
        shutil.rmtree(doomed)
    return [manifest.version for _, manifest in gone]


def versions(root: Path) -> list[int]:
    """Versions that have a step folder, whole or not, in no order."""
    if not root.is_dir():
        return []
    return [int(match[1]) for path in root.iterdir() if (match := _STEP.fullmatch(path.name)) and path.is_dir()]
