"""Arrays on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from schemas.errors import RecordRefused
from schemas.records import blobs
from tests.fakes.records.damage import ANYTHING


@settings(deadline=None)
@given(st.sampled_from(blobs.DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0))))
def test_an_array_comes_back_bit_for_bit(array: blobs.Array) -> None:
    found = blobs.decode(blobs.encode(array), array.dtype.str)
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_bytes_are_little_endian_and_in_row_order_whatever_the_array_was() -> None:
    expected = {"dtype": "<u4", "shape": [2, 2], "data": bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0])}
    plain = np.array([[1, 2], [3, 4]], dtype="<u4")
    assert [blobs.encode(a) for a in (plain, plain.astype(">u4"), np.asfortranarray(plain))] == [expected] * 3


def test_a_decoded_array_is_a_read_only_view() -> None:
    array = blobs.decode(blobs.encode(np.arange(3, dtype="<i8")))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize("dtype", ["<f2", "<i4", "|b1", "<c8", "|O", "<U1"])
def test_other_dtypes_do_not_travel(dtype: str) -> None:
    with pytest.raises(ValueError, match="blobs hold <u4"):
        blobs.encode(np.zeros(2, dtype=dtype))


@pytest.mark.parametrize(
    ("blob", "says"),
    [
        (None, "tokens is not a blob"),
        ([1, 2, 3], "is not a blob"),
        ({"dtype": "<u4", "shape": [0]}, "is not a blob"),
        ({"dtype": "<u4", "shape": [0], "data": b"", "more": 1}, "is not a blob"),
        ({"dtype": "<f4", "shape": [0], "data": b""}, "dtype '<f4', expected <u4"),
        ({"dtype": ">u4", "shape": [0], "data": b""}, "dtype '>u4'"),
        ({"dtype": ["<u4"], "shape": [0], "data": b""}, "dtype"),
        ({"dtype": "<u4", "shape": 0, "data": b""}, "no valid shape"),
        ({"dtype": "<u4", "shape": [-1], "data": b""}, "no valid shape"),
        ({"dtype": "<u4", "shape": [True], "data": b"0000"}, "no valid shape"),
        ({"dtype": "<u4", "shape": [1.0], "data": b"0000"}, "no valid shape"),
        ({"dtype": "<u4", "shape": [1], "data": "0000"}, "no valid shape or data"),
        ({"dtype": "<u4", "shape": [2], "data": b"0000"}, r"4 bytes for shape \[2\]"),
        ({"dtype": "<u4", "shape": [1], "data": b"00000"}, "5 bytes"),
        ({"dtype": "<u4", "shape": [0] * 9, "data": b""}, "has shape"),
        ({"dtype": "<u4", "shape": [2**40, 0], "data": b""}, "has shape"),
        ({"dtype": "<u4", "shape": [2**31, 2**31, 0], "data": b""}, "has shape"),
    ],
)
def test_what_is_no_blob_is_refused(blob: Any, says: str) -> None:
    with pytest.raises(RecordRefused, match=says) as refused:
        blobs.decode(blob, "<u4", "tokens")
    assert refused.value.reason == "malformed"


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(blobs.DTYPES) | ANYTHING,
            "shape": st.lists(st.sampled_from([0, 1, 2, 2**16, 2**31, 2**63]), max_size=9) | ANYTHING,
            "data": st.binary(max_size=16) | ANYTHING,
        }
    )
    | ANYTHING
)
def test_anything_is_an_array_or_refused(blob: Any) -> None:
    try:
        found = blobs.decode(blob)
    except RecordRefused as refused:
        assert refused.reason == "malformed"
    else:
        assert found.nbytes == len(blob["data"])
