"""A dump: part of a run as one folder that needs no broker.

    index.json                                what it is, and the sha256 of every other file; written last
    config.yaml                               the run's
    topics/metrics.msgpack                    records as they lay in the topics
    topics/trajectories.v00000012.msgpack
    checkpoints/step_00000010/                the state before the first version
    model/, tokenizer/                        what `model.path` and `model.tokenizer` named

Invariant: nothing of a dump is read before every file that may be read was found to have the digest that the index gives it, with
no other file among them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from learner.dump.records import damaged_record
from schemas.errors import ConfigError, Problem

INDEX: Final = "index.json"
CONFIG: Final = "config.yaml"
CHECKPOINTS: Final = "checkpoints"
AGAIN: Final = "copy it again from where it was made, or make it again with weir dump"
_CHUNK = 1 << 20


class _IndexPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DumpedFile(_IndexPart):
    bytes: int
    sha256: str


class DumpedTopic(_IndexPart):
    """A topic by its name without the run's id. `topic_id`: of the topic that the records were read from."""

    file: str
    topic_id: str
    partitions: int
    records: int


class Index(_IndexPart):
    """`checkpoint` to `last` are the versions whose topics are there."""

    format: Literal["weir.dump/1"] = "weir.dump/1"
    run_id: str
    uuid: str
    config_digest: str
    prompts_per_step: int
    checkpoint: int
    last: int
    topics: dict[str, DumpedTopic]
    files: dict[str, DumpedFile] = Field(default_factory=dict)
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def seal_off(folder: Path, index: Index) -> Index:
    """Write the index of all files in the folder; the last thing that is written to a dump."""
    files = {
        path.relative_to(folder).as_posix(): DumpedFile(bytes=path.stat().st_size, sha256=sha256_of(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    whole = index.model_copy(update={"files": files})
    (folder / INDEX).write_text(whole.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return whole


def is_dump(folder: Path) -> bool:
    return (folder / INDEX).is_file()


def read_index(folder: Path) -> Index:
    """
    Raises:
        ConfigError: the folder is no dump, or has a form that this program does not know.
    """
    path = folder / INDEX
    try:
        index = Index.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError:
        why = f"has no {INDEX}" if folder.is_dir() else "no such folder"
        raise ConfigError([Problem("dump", str(folder), why, "give a folder that weir dump made")]) from None
    except (ValidationError, UnicodeDecodeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        why = f"{INDEX} is not readable: {'.'.join(map(str, first['loc']))} {first['msg']}"
        raise ConfigError([Problem("dump", str(folder), why, AGAIN)]) from error
    outside = [name for name in (*index.files, *(topic.file for topic in index.topics.values())) if not _inside(name)]
    if outside:
        why = f"{INDEX} names {outside[0]!r}, which is no file of the dump"
        raise ConfigError([Problem("dump", str(folder), why, AGAIN)])
    return index


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.as_posix() == name


def verify(folder: Path, parts: Sequence[str] = ("",)) -> Index:
    """The index, once every file was found to be as it was written.

    Args:
        parts: beginnings of names; only these files are checked, if nothing else is read.

    Raises:
        ConfigError: names all files that are missing, were changed, or were not written by `weir dump`, and the damaged record
            where it can be found.
    """
    index = read_index(folder)
    problems = [Problem(str(folder / name), None, why, fix) for name, why, fix in _damage(folder, index, tuple(parts))]
    if problems:
        raise ConfigError(problems)
    return index


def _damage(folder: Path, index: Index, parts: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for name, fact in index.files.items():
        if not name.startswith(parts):
            continue
        path = folder / name
        if not path.is_file():
            yield name, "is missing", AGAIN
            continue
        digest = sha256_of(path)
        if digest != fact.sha256:
            where = damaged_record(path) if name.endswith(".msgpack") else None
            yield name, f"has sha256 {digest}, {INDEX} says {fact.sha256}" + (f": {where}" if where else ""), AGAIN
    for name in sorted({topic.file for topic in index.topics.values()} - index.files.keys()):
        yield name, f"is named in {INDEX} without a digest", AGAIN
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    for name in sorted(there - index.files.keys() - {INDEX}):
        if name.startswith(parts):
            yield name, f"is not named in {INDEX}", "move it away"


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
