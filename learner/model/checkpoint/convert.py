"""Hugging Face checkpoint <-> the parameters of this rank's Megatron model, under tensor and pipeline parallelism.

What belongs to what comes from the family's table of `Weight`s, which also is the order of everything: export, tensor index and
loading follow it. A parameter of the model that the table lacks, or the other way round, is an error, never left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from learner.model.families.family import Weight
from learner.model.families.forms import Sizes

_LAYERS = "decoder.layers."


@dataclass(frozen=True, slots=True)
class Layout:
    """The parameters of the whole model, and where this rank stands: its share of a split, the groups to gather over."""

    weights: Sequence[Weight]
    """`Family.weights`, in order."""
    sizes: Sizes
    tp_group: Any
    pp_rank: int
    pp_size: int
    pp_group: Any


def own_parameters(model: Any, weights: Sequence[Weight]) -> dict[int, Tensor]:
    """The parameters of a (bare) GPTModel of this rank, by their place in `weights`.

    Raises:
        ValueError: the family's table does not have one of them.
    """
    # Transformer Engine's names stand beside megatron's local ones, so that one table serves both.
    places = {name: place for place, weight in enumerate(weights) for name in (weight.megatron, *weight.aliases)}
    layers = getattr(model.decoder, "layers", [])
    found = {}
    for local, parameter in model.named_parameters():
        name = local
        if local.startswith(_LAYERS):
            index, rest = local.removeprefix(_LAYERS).split(".", 1)
            # Names count the layers of this pipeline stage from 0; `layer_number` counts those of the model from 1.
            name = f"{_LAYERS}{int(layers[int(index)].layer_number) - 1}.{rest}"
        if name not in places:
            raise ValueError(f"megatron built a parameter {name} that the model's family does not have")
        found[places[name]] = parameter
    return found


def load_weights(model: Any, tensors: Mapping[str, Tensor] | Any, layout: Layout) -> None:
    """Copy this rank's share of a checkpoint into its model. `tensors[name]` gives a full tensor.

    Raises:
        ValueError: a tensor of the checkpoint has another shape than its parameter.
    """
    for place, parameter in own_parameters(model, layout.weights).items():
        weight = layout.weights[place]
        # A tied head's copy on the last stage too: nothing else would ever set it.
        share = weight.form.share([tensors[name] for name in weight.tensors], layout.sizes)
        if share.shape != parameter.shape:
            names = ", ".join(weight.tensors)
            raise ValueError(f"{names}: shape {tuple(share.shape)} for a parameter of {tuple(parameter.shape)}")
        with torch.no_grad():
            parameter.copy_(share)


def export(model: Any, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, full contiguous tensor) in the family's order, on every rank; all ranks must go through it to its end.

    The gathering of a parameter is complete before its tensors are yielded. They may share memory with the model: read only.
    One parameter at a time: a second copy of the whole model would not fit beside it on a GPU.
    """
    mine = own_parameters(model, layout.weights)
    for place, (stage, shape, dtype) in _owners(mine, layout).items():
        weight = layout.weights[place]
        shards = _gather(mine.get(place), weight, stage, shape, dtype, layout)
        for name, tensor in zip(weight.tensors, weight.form.whole(shards, layout.sizes), strict=True):
            yield name, tensor.contiguous()


def _owners(mine: Mapping[int, Tensor], layout: Layout) -> dict[int, tuple[int, tuple[int, ...], torch.dtype]]:
    """Which pipeline stage holds each parameter that is exported, with the shape of a rank's share, in order.

    Raises:
        ValueError: no stage holds one of the family's parameters.
    """
    # Shapes travel too: the other stages must make room for what they have never seen.
    own = {place: (tuple(p.shape), p.dtype) for place, p in mine.items()}
    stages: list[Any] = [own]
    if layout.pp_size > 1:
        stages = [None] * layout.pp_size
        dist.all_gather_object(stages, own, group=layout.pp_group)
    found = {place: (stage, *what) for stage, held in enumerate(stages) for place, what in held.items()}
    exported = [place for place, weight in enumerate(layout.weights) if not weight.duplicate]
    missing = [layout.weights[place].megatron for place in exported if place not in found]
    if missing:
        raise ValueError(f"megatron built no parameter for {len(missing)} of the family's weights, {missing[0]} first")
    return {place: found[place] for place in exported}


def _gather(
    parameter: Tensor | None, weight: Weight, stage: int, shape: tuple[int, ...], dtype: torch.dtype, layout: Layout
) -> list[Tensor]:
    """Every tensor-parallel rank's share, on all ranks: first among those of the stage that has it, then to the other stages."""
    pieces = layout.sizes.ranks if weight.form.split else 1
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
    # Along the pipeline each rank talks to those with its own tensor-parallel rank; all of them hold all shards by now.
    if layout.pp_size > 1:
        source = dist.get_global_rank(layout.pp_group, stage)
        for shard in shards:
            dist.broadcast(shard, source, group=layout.pp_group)
    return shards


def tensor_names(weights: Sequence[Weight]) -> list[str]:
    """The names that `export` yields, without a model."""
    return [name for weight in weights if not weight.duplicate for name in weight.tensors]
