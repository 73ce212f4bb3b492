"""Arrays on the wire: dtype, shape and little-endian bytes, never lists of numbers.

A list of numbers costs five times the bytes and, decoded from hostile input, sixty times the memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import RecordRefused

Array = npt.NDArray[Any]
Blob = dict[str, Any]

DTYPES = ("<u4", "<f4", "|u1", "<i8", "<f8")
_DTYPES = {name: np.dtype(name) for name in DTYPES}
MAX_DIMENSIONS = 8
MAX_LENGTH = 1 << 31  # of one dimension: a record is far smaller, and numpy raises its own errors on larger ones


def encode(array: Array) -> Blob:
    """`{"dtype", "shape", "data"}` of an array of one of `DTYPES`."""
    dtype = array.dtype.newbyteorder("<").str
    if dtype not in DTYPES:
        raise ValueError(f"blobs hold {', '.join(DTYPES)}, not {dtype}")
    return {"dtype": dtype, "shape": list(array.shape), "data": np.ascontiguousarray(array, dtype=dtype).tobytes()}


def decode(blob: object, dtype: str | None = None, what: str = "blob") -> Array:
    """The array of a blob, as a read-only view of its bytes.

    Raises:
        RecordRefused: not a blob, another dtype than `dtype`, or bytes that do not fit the shape.
    """
    if not isinstance(blob, dict) or blob.keys() != {"dtype", "shape", "data"}:
        raise RecordRefused("malformed", f"{what} is not a blob")
    found, shape, data = blob["dtype"], blob["shape"], blob["data"]
    if found == dtype and type(shape) is list and len(shape) == 1 and type(shape[0]) is int and type(data) is bytes:
        known = _DTYPES.get(found)  # nearly every blob is a plain vector of what is expected
        if known is not None and 0 <= shape[0] <= MAX_LENGTH and shape[0] * known.itemsize == len(data):
            return np.frombuffer(data, dtype=known)
    if found not in DTYPES or (dtype is not None and found != dtype):
        raise RecordRefused("malformed", f"{what} has dtype {found!r}, expected {dtype or 'one of ' + ', '.join(DTYPES)}")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape) or not isinstance(data, bytes):
        raise RecordRefused("malformed", f"{what} has no valid shape or data")
    if len(shape) > MAX_DIMENSIONS or max(shape, default=0) > MAX_LENGTH:
        raise RecordRefused("malformed", f"{what} has shape {shape[: MAX_DIMENSIONS + 1]}")
    if len(data) != math.prod(shape) * np.dtype(found).itemsize:
        raise RecordRefused("malformed", f"{what} has {len(data)} bytes for shape {shape} of {found}")
    try:
        return np.frombuffer(data, dtype=found).reshape(shape)
    except ValueError as error:  # a dimension of 0 and others whose product is beyond what numpy indexes
        raise RecordRefused("malformed", f"{what} has shape {shape} ({error})") from error
