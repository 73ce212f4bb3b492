"""Rows and their places: lines of a .jsonl file, rows of a .parquet file, of a Hugging Face data set, of a generator.

Rows are read when they are asked for, so that a large file need not fit in memory as Python objects.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from producer.data.keys import BadRow
from producer.environments.base import Environment, Split
from schemas.errors import ConfigError, Problem

GENERATOR = "environment"
"""The source that means the environment's own generator."""
_SAMPLED = 50_000  # rows, evenly spread: the most that a digest reads where there is no file to read instead
_HUB_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)?$")


class Rows(Protocol):
    """`count`: None for a generator without end."""

    @property
    def count(self) -> int | None: ...

    def row(self, index: int) -> Mapping[str, Any]:
        """Raises: BadRow: what is there is no row."""
        ...

    def where(self, index: int) -> str:
        """File and line, or whatever names the row in a message."""
        ...

    def digest(self) -> str:
        """Equal wherever the contents are equal."""
        ...


class JsonlRows:
    """One JSON object a line. Blank lines are skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        starts, lines = [], []
        self._sha = hashlib.sha256()
        with path.open("rb") as file:
            at = 0
            for number, line in enumerate(file, start=1):
                self._sha.update(line)
                if line.strip():
                    starts.append(at)
                    lines.append(number)
                at += len(line)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if at else b""
        self._starts = np.array(starts, dtype=np.int64)
        self._lines = np.array(lines, dtype=np.int64)

    @property
    def count(self) -> int:
        return len(self._starts)

    def row(self, index: int) -> Mapping[str, Any]:
        start = int(self._starts[index])
        end = self._map.find(b"\n", start)
        line = self._map[start : None if end < 0 else end]
        try:
            value = json.loads(line)
        except UnicodeDecodeError as error:
            raise BadRow(f"not UTF-8 ({error.reason})") from None
        except json.JSONDecodeError as error:
            raise BadRow(f"not JSON ({error.msg} at column {error.colno})") from None
        if not isinstance(value, dict):
            raise BadRow(f"a {type(value).__name__}, not an object")
        return value

    def where(self, index: int) -> str:
        return f"{self._path}:{int(self._lines[index])}"

    def digest(self) -> str:
        return self._sha.hexdigest()


class ParquetRows:
    """Rows of one parquet file."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self._path = path
        try:
            self._table = pyarrow.parquet.read_table(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise ConfigError([Problem(str(path), None, f"not readable as parquet ({error})", "replace the file")]) from None

    @property
    def count(self) -> int:
        return int(self._table.num_rows)

    def row(self, index: int) -> Mapping[str, Any]:
        row: dict[str, Any] = self._table.slice(index, 1).to_pylist()[0]
        return row

    def where(self, index: int) -> str:
        return f"{self._path} row {index}"

    def digest(self) -> str:
        with self._path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


class HuggingFaceRows:
    """One split of a data set of the `datasets` library."""

    def __init__(self, name: str, dataset: Any) -> None:
        self._name = name
        self._dataset = dataset

    @property
    def count(self) -> int:
        return len(self._dataset)

    def row(self, index: int) -> Mapping[str, Any]:
        row: Mapping[str, Any] = self._dataset[index]
        return row

    def where(self, index: int) -> str:
        return f"{self._name} row {index}"

    def digest(self) -> str:
        return sampled_digest(self)


class GeneratedRows:
    """Rows that the environment makes."""

    def __init__(self, environment: Environment, split: Split) -> None:
        self._environment = environment
        self._split = split
        self.count = environment.rows(split)

    def row(self, index: int) -> Mapping[str, Any]:
        try:
            row = self._environment.generate(index, self._split)
        except Exception as error:
            # Code of the environment's author: whatever it raises, there is no such row.
            raise BadRow(f"{type(error).__name__}: {error}", "fix the environment's generate") from error
        if not isinstance(row, Mapping):
            raise BadRow(f"a {type(row).__name__}, not a mapping", "fix the environment's generate")
        return row

    def where(self, index: int) -> str:
        return f"{type(self._environment).__name__}.generate({index}, {self._split!r})"

    def digest(self) -> str:
        return sampled_digest(self, 100)


def sampled_digest(rows: Rows, at_most: int = _SAMPLED) -> str:
    """sha256 of the count and the rows as JSON; in a larger set of `at_most` rows, evenly spread."""
    count = rows.count
    digest = hashlib.sha256(f"{count}\n".encode())
    total = at_most if count is None else count
    for index in sorted({n * total // at_most for n in range(at_most)}) if total > at_most else range(total):
        digest.update(json.dumps(rows.row(index), sort_keys=True, default=str).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def is_remote(source: str) -> bool:
    """Whether the source can only be read from the hub."""
    return source != GENERATOR and not Path(source).exists() and not _file_like(source)


def _file_like(source: str) -> bool:
    return Path(source).suffix in (".jsonl", ".parquet", ".json", ".csv", ".txt", ".arrow") or not _HUB_NAME.match(source)


def open_rows(key: str, source: str, split: str, subset: str | None) -> Rows:
    """Open a file, a folder or a name. `key` is the config's key, for errors.

    Raises:
        ConfigError: nothing there, not readable, no rows.
    """
    path = Path(source)
    rows: Rows
    if path.is_dir():
        rows = _open_hugging_face(key, source, split, subset)
    elif path.is_file():
        if path.suffix == ".jsonl":
            rows = JsonlRows(path)
        elif path.suffix == ".parquet":
            rows = ParquetRows(path)
        else:
            raise ConfigError([Problem(key, source, "neither .jsonl nor .parquet", "convert the file, or rename it")])
    elif _file_like(source):
        raise ConfigError([Problem(key, source, "no such file", _near(path))])
    else:
        rows = _open_hugging_face(key, source, split, subset)
    if rows.count == 0:
        raise ConfigError([Problem(key, source, "has no rows", "give a file with rows")])
    return rows


def _near(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either; give the path of a .jsonl or .parquet file"
    near = difflib.get_close_matches(path.name, [p.name for p in folder.iterdir()], n=1)
    return f"did you mean {folder / near[0]}?" if near else "give the path of a .jsonl or .parquet file"


def _open_hugging_face(key: str, source: str, split: str, subset: str | None) -> Rows:
    import datasets

    folder = Path(source)
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            loaded = datasets.load_from_disk(source)
            if isinstance(loaded, datasets.DatasetDict):
                if split not in loaded:
                    raise ValueError(f"no split {split}; it has {', '.join(loaded)}")
                loaded = loaded[split]
        else:
            loaded = datasets.load_dataset(source, name=subset, split=split)
    except Exception as error:
        # The library and the clients under it raise a dozen unrelated types; whichever it is, the data cannot be read.
        kind = "folder" if folder.is_dir() else "name on the hub"
        why = f"not readable as a Hugging Face data set, {kind} ({type(error).__name__}: {error})"
        fix = f"check the path, {'data.split' if key == 'data.train' else 'data.validation_split'} and data.subset"
        raise ConfigError([Problem(key, source, why, fix)]) from error
    return HuggingFaceRows(f"{source} ({split})", loaded)
