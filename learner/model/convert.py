"""Names and layouts: Hugging Face checkpoint <-> megatron-core parameters, under tensor and pipeline parallelism.

megatron fuses q, k and v (for each query group: its q heads, its k head, its v head) and gate and up, splits over ranks, and with
Transformer Engine keeps norms inside the layer that follows them. `PLAN_ORDER`: the embedding, then the layers by number and in
each the parameters in the order of `LAYER`, then the last norm, then the head; export, tensor index and loading all follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

EMBEDDING, LAST_NORM, HEAD = "embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight"
TOP = {EMBEDDING: "model.embed_tokens.weight", LAST_NORM: "model.norm.weight", HEAD: "lm_head.weight"}

LAYER: dict[str, tuple[str, ...]] = {
    "input_layernorm.weight": ("input_layernorm.weight",),
    "self_attention.linear_qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "self_attention.linear_qkv.bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight",),
    "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight",),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight",),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight",),
    "mlp.linear_fc1.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight",),
}
INSIDE = {  # Transformer Engine's names
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}
_SPLIT_ROWS = (EMBEDDING, HEAD, "self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias", "mlp.linear_fc1.weight")
_SPLIT_COLUMNS = ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight")
_ORDER = {name: order for order, name in enumerate(LAYER)}

Get = Callable[[str], Tensor]


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A parameter of the whole model; sorts in plan order."""

    place: int
    """0 embedding, 1 layers, 2 last norm, 3 head"""
    layer: int
    order: int
    name: str

    @property
    def hf_names(self) -> tuple[str, ...]:
        """The checkpoint's tensors that the parameter is made of."""
        if self.place != 1:
            return (TOP[self.name],)
        return tuple(f"model.layers.{self.layer}.{name}" for name in LAYER[self.name])


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of the attention: q heads, query groups (k and v heads), width of a head."""

    queries: int
    groups: int
    width: int

    def fuse(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Three projections [heads * width, ...] to [(queries + 2 groups) * width, ...]."""
        tail = q.shape[1:]
        parts = [
            q.reshape(self.groups, -1, *tail),
            k.reshape(self.groups, self.width, *tail),
            v.reshape(self.groups, self.width, *tail),
        ]
        return torch.cat(parts, 1).reshape(-1, *tail)

    def unfuse(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tail = fused.shape[1:]
        sizes = [self.queries // self.groups * self.width, self.width, self.width]
        q, k, v = fused.reshape(self.groups, sum(sizes), *tail).split(sizes, 1)
        return q.reshape(-1, *tail), k.reshape(-1, *tail), v.reshape(-1, *tail)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this rank stands: its share of a tensor-parallel split, the groups to gather over, the attention's sizes."""

    heads: Heads
    vocab_size: int
    tied: bool
    tp_rank: int
    tp_size: int
    tp_group: Any
    pp_rank: int
    pp_size: int
    pp_group: Any


def key_of(name: str, layer_number: Callable[[int], int]) -> Key:
    """The key of a parameter of this rank's model; `layer_number` turns its local layer index into the global one."""
    if not name.startswith("decoder.layers."):
        return Key({EMBEDDING: 0, LAST_NORM: 2, HEAD: 3}[name], 0, 0, name)
    local, suffix = name.removeprefix("decoder.layers.").split(".", 1)
    suffix = INSIDE.get(suffix, suffix)
    return Key(1, layer_number(int(local)), _ORDER[suffix], suffix)


def keyed_parameters(model: Any) -> dict[Key, Tensor]:
    """The parameters of a (bare) GPTModel of this rank."""
    layers = getattr(model.decoder, "layers", [])
    return {key_of(name, lambda i: int(layers[i].layer_number) - 1): parameter for name, parameter in model.named_parameters()}


def split_dim(name: str) -> int | None:
    """Dimension that tensor parallelism splits; None: every rank holds the whole parameter."""
    if name in _SPLIT_ROWS:
        return 0
    return 1 if name in _SPLIT_COLUMNS else None


def load(model: Any, weights: Mapping[str, Tensor] | Any, layout: Layout) -> None:
    """Copy this rank's share of a checkpoint into its model. `weights[name]` gives a full tensor."""
    for key, parameter in keyed_parameters(model).items():
        names = key.hf_names
        if key.name == HEAD and layout.tied:
            names = (TOP[EMBEDDING],)  # the last pipeline stage's own copy
        share = _share(key.name, [weights[name] for name in names], layout)
        if share.shape != parameter.shape:
            raise ValueError(f"{', '.join(names)}: shape {tuple(share.shape)} for a parameter of {tuple(parameter.shape)}")
        with torch.no_grad():
            parameter.copy_(share)


def _share(name: str, full: list[Tensor], layout: Layout) -> Tensor:
    rank, size = layout.tp_rank, layout.tp_size
    if name == "mlp.linear_fc1.weight":
        return torch.cat([part.chunk(size)[rank] for part in full])
    if len(full) == 3:
        whole = layout.heads.fuse(*full)
    elif name in (EMBEDDING, HEAD):
        rows = padded_vocab(layout.vocab_size, size) - full[0].shape[0]
        whole = torch.cat([full[0], full[0].new_zeros(rows, full[0].shape[1])]) if rows else full[0]
    else:
        whole = full[0]
    dim = split_dim(name)
    return whole if dim is None else whole.chunk(size, dim)[rank]


def padded_vocab(vocab_size: int, tp_size: int) -> int:
    """Rows of the embedding: the vocabulary, rounded up to a multiple of the tensor-parallel size."""
    return -(-vocab_size // tp_size) * tp_size


def export(model: Any, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, full contiguous tensor) in plan order, on every rank; all ranks must go through it to its end.

    The gathering of a parameter is complete before its tensors are yielded. They may share memory with the model: read only.
    """
    mine = keyed_parameters(model)
    for key, (stage, shape, dtype) in _owners(mine, layout).items():
        shards = _gather(mine.get(key), key, stage, shape, dtype, layout)
        for name, tensor in zip(key.hf_names, _whole(key.name, shards, layout), strict=True):
            yield name, tensor.contiguous()


def _owners(mine: Mapping[Key, Tensor], layout: Layout) -> dict[Key, tuple[int, tuple[int, ...], torch.dtype]]:
    """Which pipeline stage holds each parameter, for all of the model, in plan order. A tied head belongs to the embedding."""
    own = {key: (tuple(p.shape), p.dtype) for key, p in mine.items()}
    stages: list[Any] = [own]
    if layout.pp_size > 1:
        stages = [None] * layout.pp_size
        dist.all_gather_object(stages, own, group=layout.pp_group)
    found = {key: (stage, *what) for stage, held in enumerate(stages) for key, what in held.items()}
    return {key: found[key] for key in sorted(found) if not (layout.tied and key.name == HEAD)}


def _gather(
    parameter: Tensor | None, key: Key, stage: int, shape: tuple[int, ...], dtype: torch.dtype, layout: Layout
) -> list[Tensor]:
    pieces = layout.tp_size if split_dim(key.name) is not None else 1
    if stage == layout.pp_rank:
        assert parameter is not None
        own = parameter.detach().contiguous()
        shards = [own]
        if pieces > 1:
            shards = [torch.empty_like(own) for _ in range(pieces)]
            dist.all_gather(shards, own, group=layout.tp_group)
    else:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        shards = [torch.empty(shape, dtype=dtype, device=device) for _ in range(pieces)]
    if layout.pp_size > 1:
        source = dist.get_global_rank(layout.pp_group, stage)
        for shard in shards:
            dist.broadcast(shard, source, group=layout.pp_group)
    return shards


def _whole(name: str, shards: list[Tensor], layout: Layout) -> tuple[Tensor, ...]:
    if name == "mlp.linear_fc1.weight":
        halves = [shard.chunk(2) for shard in shards]
        return torch.cat([half[0] for half in halves]), torch.cat([half[1] for half in halves])
    whole = shards[0] if len(shards) == 1 else torch.cat(shards, split_dim(name) or 0)
    if name.startswith("self_attention.linear_qkv."):
        return layout.heads.unfuse(whole)
    return (whole[: layout.vocab_size] if name in (EMBEDDING, HEAD) else whole,)


def tensor_names(layers: int, *, tied: bool, qk_norm: bool, qkv_bias: bool) -> list[str]:
    """The names that `export` yields, without a model."""
    skipped = [] if qk_norm else ["self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"]
    skipped += [] if qkv_bias else ["self_attention.linear_qkv.bias"]
    keys = [Key(0, 0, 0, EMBEDDING)]
    keys += [Key(1, layer, order, name) for layer in range(layers) for name, order in _ORDER.items() if name not in skipped]
    keys += [Key(2, 0, 0, LAST_NORM)] + ([] if tied else [Key(3, 0, 0, HEAD)])
    return [name for key in keys for name in key.hf_names]
