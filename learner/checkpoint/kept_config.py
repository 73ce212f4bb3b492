"""The configs that a run was trained under, kept in its folder: what the digest in seals and manifests stands for."""

from __future__ import annotations

from pathlib import Path

from schemas.config.config import Config
from schemas.disk import file_errors, write_whole


def kept_config(folder: Path, digest: str) -> Path:
    """Where a run keeps the config of that digest."""
    return folder / f"config.{digest}.yaml"


def keep_config(config: Config) -> None:
    """Write `config.<digest>.yaml` to the run's folder, unless it is there.

    Raises:
        FileError: it cannot be written.
    """
    # Keys that no step depends on are not in the digest: the first config of a digest stands for all of them.
    kept = kept_config(config.folder, config.digest)
    if not kept.exists():
        with file_errors("the run's config was not written", config.folder):
            write_whole(kept, config.to_yaml())
