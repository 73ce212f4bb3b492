"""The weights of one version on their way: in which order, in which buckets, under which checksum.

The plan is a pure function of the checkpoint's tensor index and the dtype, so both ends make it for themselves and only its
digest need be compared. A checksum is the same on every device, thread count and reduction order, because it is integer
arithmetic modulo 2**64; it finds transmission faults, not forgers. torch is imported where tensors are handled, never before.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.errors import ConfigError, Problem

if TYPE_CHECKING:
    import torch

TensorIndex = Sequence[tuple[str, tuple[int, ...]]]

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
WORD_BYTES = 8
ROW_WORDS = 1 << 15
"""Words that share one reduction of the checksum: small enough for a core's cache."""

_ROW_FACTOR = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
PROBE_TOKENS = 33


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
    """Buckets of at most `bucket_mib`, in the order of `index`; a larger tensor is a bucket of its own.

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


def empty_bucket(plan: WeightPlan, bucket: Bucket, device: torch.device | str = "cpu") -> torch.Tensor:
    """A zeroed flat buffer [bucket.items] of the plan's dtype; zeros also fill the padding on both ends."""
    import torch

    return torch.zeros(bucket.items, dtype=getattr(torch, plan.dtype), device=device)


def words(buffer: torch.Tensor) -> torch.Tensor:
    """A bucket's buffer as int64 words: what is broadcast and summed, whatever the dtype."""
    import torch

    return buffer.view(torch.int64)


def checksum(buffer: torch.Tensor) -> int:
    """64-bit checksum of a bucket's flat buffer, order-sensitive, computed on the buffer's device.

    Words are folded (so that differences in high bits reach the low ones), multiplied by odd pseudo-random position factors
    and summed by rows of `ROW_WORDS`; the rows' sums are the digits of a polynomial.
    """
    import torch

    flat = words(buffer)
    factors = _factors(str(flat.device))
    total = 0
    whole = flat.numel() // ROW_WORDS * ROW_WORDS
    rows = list(flat[:whole].view(-1, ROW_WORDS).split(1 if flat.device.type == "cpu" else 1 << 10))
    sums = [((r >> 32).bitwise_and_(0xFFFFFFFF).bitwise_xor_(r).mul_(factors)).sum(dim=1) for r in rows]
    tail = flat[whole:]
    if tail.numel():
        sums.append(((tail >> 32).bitwise_and_(0xFFFFFFFF).bitwise_xor_(tail).mul_(factors[: tail.numel()])).sum().view(1))
    for value in torch.cat(sums).tolist() if sums else []:
        total = (total * _ROW_FACTOR + value) & _MASK
    return total


@functools.lru_cache(maxsize=8)
def _factors(device: str) -> torch.Tensor:
    import torch

    z = np.arange(1, ROW_WORDS + 1, dtype=np.uint64) * np.uint64(_ROW_FACTOR)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy(((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64)).to(device)


def combine(plan: WeightPlan, checksums: Iterable[int]) -> str:
    """The digest of a version's weights, 16 hex digits: of the plan and its buckets' checksums, in order."""
    digest = hashlib.blake2b(bytes.fromhex(plan.digest), digest_size=8)
    for value in checksums:
        digest.update(value.to_bytes(8, "little"))
    return digest.hexdigest()


def probe_tokens(vocab_size: int, max_total_length: int) -> list[int]:
    """The fixed pseudo-random token ids that engine and learner score after each load.

    At most 33, and one fewer than the model's longest sequence, since the engine must be able to sample one more. The ids
    are spread over the vocabulary; they may name tokens that no text contains, which both ends score alike.
    """
    count = min(PROBE_TOKENS, max_total_length - 1)
    state, ids = 0x2545F4914F6CDD1D, []
    for _ in range(max(count, 0)):
        state = (state * 6364136223846793005 + 1442695040888963407) & _MASK
        ids.append((state >> 33) % vocab_size)
    return ids
