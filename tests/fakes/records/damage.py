"""Strategies of damaged records: bytes overwritten, cut or doubled, and JSON with anything in any place."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, value: bytes) -> bytes:
    """`value` with up to four bytes overwritten, and perhaps a piece cut out or doubled."""
    found = bytearray(value)
    for _ in range(draw(st.integers(0, 4))):
        found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 255))
    start, end = sorted((draw(st.integers(0, len(found))), draw(st.integers(0, len(found)))))
    piece = found[start:end] * draw(st.integers(0, 2))
    return bytes(found[:start] + piece + found[end:])


@st.composite
def damaged_json(draw: st.DrawFn, value: bytes) -> bytes:
    """A JSON record one of whose values, at any depth, is gone or another one."""
    record = json.loads(value)
    node, key = draw(st.sampled_from(_places(record)))
    if draw(st.booleans()):
        node[key] = draw(ANYTHING)
    else:
        del node[key]
    return json.dumps(record).encode()


def _places(node: Any) -> list[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    return [(node, key) for key in keys] + [place for key in keys for place in _places(node[key])]
