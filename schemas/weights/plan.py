"""The weights of one version on their way: in which order, in which buckets.

The plan is a pure function of the checkpoint's tensor index and the dtype, so both ends make it for themselves and only its
digest need be compared.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError, Problem

TensorIndex = Sequence[tuple[str, tuple[int, ...]]]

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors [first, last) of the plan, packed tightly. `items` is padded so that the bytes are whole 64-bit words."""

    first: int
    last: int
    items: int


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """All tensors of a model in the order in which they travel, and their buckets. `dtype` holds for all of them."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: str
    buckets: tuple[Bucket, ...]
    digest: str
    """32 hex digits over everything above."""

    def places(self, bucket: Bucket) -> list[tuple[str, tuple[int, ...], int, int]]:
        """(name, shape, start, end) of every tensor of a bucket, in items of its flat buffer."""
        places, start = [], 0
        for name, shape in self.tensors[bucket.first : bucket.last]:
            end = start + math.prod(shape)
            places.append((name, shape, start, end))
            start = end
        return places


def make_plan(index: TensorIndex, dtype: str, bucket_mib: int) -> WeightPlan:
    """Buckets of at most `bucket_mib`, in the order of `index`; a larger tensor gets its own bucket.

    Raises:
        ValueError: a dtype that does not travel, no tensors, or a name twice.
    """
    if dtype not in ITEM_BYTES:
        raise ValueError(f"weights travel as {' or '.join(ITEM_BYTES)}, not {dtype!r}")
    tensors = tuple((name, tuple(int(n) for n in shape)) for name, shape in index)
    if not tensors or len({name for name, _ in tensors}) != len(tensors):
        raise ValueError(f"{len(tensors)} tensors with {len({name for name, _ in tensors})} different names make no plan")
    limit = bucket_mib * (1 << 20) // ITEM_BYTES[dtype]
    buckets: list[Bucket] = []
    first = items = 0
    for position, (_, shape) in enumerate(tensors):
        size = math.prod(shape)
        if items and items + size > limit:
            buckets.append(_bucket(first, position, items, dtype))
            first, items = position, 0
        items += size
    buckets.append(_bucket(first, len(tensors), items, dtype))
    text = json.dumps([dtype, tensors, [[b.first, b.last, b.items] for b in buckets]], separators=(",", ":"))
    return WeightPlan(tensors, dtype, tuple(buckets), hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def _bucket(first: int, last: int, items: int, dtype: str) -> Bucket:
    per_word = WORD_BYTES // ITEM_BYTES[dtype]
    return Bucket(first, last, -(-items // per_word) * per_word)


def tensor_index(model_path: str | Path) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a Hugging Face checkpoint folder's tensors, sorted by name, from the safetensors headers alone.

    A tied output matrix is left out even where the file has it: whoever loads the embedding has loaded it.

    Raises:
        ConfigError: not a folder with config.json and safetensors weights.
    """
    from safetensors import safe_open

    folder = Path(model_path)
    files = sorted(folder.glob("*.safetensors"))
    listing = folder / "model.safetensors.index.json"
    if listing.is_file():
        files = [folder / name for name in sorted(set(json.loads(listing.read_text())["weight_map"].values()))]
    elif (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    missing = [path.name for path in files if not path.is_file()]
    if missing or not files or not (folder / "config.json").is_file():
        why = f"lacks {', '.join(missing)}" if missing else "is not a folder with config.json and *.safetensors"
        fix = "give a local Hugging Face checkpoint folder in safetensors format"
        raise ConfigError([Problem("model.path", str(model_path), why, fix)])
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        with safe_open(path, framework="numpy") as file:
            shapes.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118 (not a dict)
    if model_config_value(folder, "tie_word_embeddings") is True:
        shapes.pop("lm_head.weight", None)
    return sorted(shapes.items())


def model_config_value(model_path: str | Path, key: str) -> Any:
    """A key of the folder's config.json, or of its `text_config`; None where neither has it."""
    config = json.loads((Path(model_path) / "config.json").read_text())
    nested = config.get("text_config")
    return config.get(key, nested.get(key) if isinstance(nested, dict) else None)
