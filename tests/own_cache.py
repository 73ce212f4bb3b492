"""A cache folder of one's own: the downloaded jars, and a local broker that is the default one there."""

from __future__ import annotations

from pathlib import Path

from broker_config.cache import kafka_cache
from broker_config.local.installation import install


def make_cache(folder: Path) -> Path:
    """A folder for `WEIR_CACHE`; the jars are downloaded first if need be."""
    install(print)
    mine = folder / "cache" / "kafka"
    mine.mkdir(parents=True)
    for entry in kafka_cache().iterdir():
        if entry.name != "broker":
            (mine / entry.name).symlink_to(entry)
    return folder / "cache"
