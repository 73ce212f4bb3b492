"""Digests of configs and other plain values, and their flat views."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as `{"a.b": leaf}`; lists are leaves."""
    if isinstance(value, Mapping):
        flat: dict[str, Any] = {}
        for key, inner in value.items():
            flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: value}


def digest(value: Any) -> str:
    """sha256 of canonical JSON, the first 16 hex digits: enough to distinguish the configs of one run."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
