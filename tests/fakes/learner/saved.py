"""A checkpoint folder in one call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from learner.checkpoint.manifest import Manifest
from learner.checkpoint.saving import PendingWrite, begin_saving


def save(
    root: Path, manifest: Manifest, write: Callable[[Path], PendingWrite | None], confirm: Callable[[], None] = lambda: None
) -> Path:
    """As the only rank of a learner."""
    saving = begin_saving(root, manifest.version, manifest.incarnation, write, rank=0, gather=lambda value: [value])
    saving.finish()
    return saving.publish(manifest, confirm)
