"""What lies in a log today must be readable tomorrow: every record's bytes are the golden ones and read as that record."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from schemas.records import control, status
from schemas.records.group import TrajectoryGroup
from tests.contract.golden_records import FOLDER, GOLDEN, path_of

AGAIN = "a changed record needs a new schema number; then: python -m tests.contract.golden_records --write"


def plain(value: Any) -> Any:
    """A group as values that can be compared: arrays as (dtype, shape, bytes)."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple):
        return tuple(plain(inner) for inner in value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    slots = getattr(type(value), "__slots__", ())
    return {name: plain(getattr(value, name)) for name in slots} if slots and not isinstance(value, str) else value


@pytest.mark.parametrize("name", GOLDEN)
def test_a_record_is_written_as_the_golden_bytes(name: str) -> None:
    assert GOLDEN[name].value == path_of(name).read_bytes(), AGAIN


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_are_read_as_the_record(name: str) -> None:
    decoded, record = GOLDEN[name].decode(path_of(name).read_bytes()), GOLDEN[name].record
    assert type(decoded) is type(record)
    if isinstance(record, TrajectoryGroup):
        assert plain(decoded) == plain(record)
    else:
        assert decoded == record


def test_no_golden_file_is_left_of_a_record_that_is_gone() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {path_of(name).name for name in GOLDEN}


def test_every_kind_of_record_has_a_golden_one() -> None:
    kinds = {kind for union in (control.ControlRecord, status.StatusRecord) for kind in get_args(get_args(union)[0])}
    assert kinds <= {type(golden.record) for golden in GOLDEN.values()}
    assert len(kinds) == 9
