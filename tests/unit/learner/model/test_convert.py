"""A family's table against what Megatron built."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from learner.model.checkpoint.convert import Layout, export, load_weights, tensor_names
from learner.model.families.family import EMBEDDING, LAST_NORM, Weight
from learner.model.families.forms import Sizes

SIZES = Sizes(queries=1, groups=1, width=1, vocab=3, rank=0, ranks=1)
NORM = Weight("norm.weight", ("a_norm.weight",), aliases=("inside.layer_norm_weight",))
WEIGHTS = (EMBEDDING, *(NORM.below(f"decoder.layers.{i}.", f"model.layers.{i}.") for i in range(4)), LAST_NORM)


class Model:
    """The second of two pipeline stages, with layers 2 and 3 of the model under local names 0 and 1."""

    def __init__(self, **parameters: Tensor) -> None:
        self.parameters = parameters or {name: torch.zeros(2) for name in ("0.norm.weight", "1.inside.layer_norm_weight")}
        self.decoder = SimpleNamespace(layers=[SimpleNamespace(layer_number=number) for number in (3, 4)])

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.parameters.items():
            yield f"decoder.layers.{name}", parameter


def layout(weights: tuple[Weight, ...] = WEIGHTS, **changes: Any) -> Layout:
    values: dict[str, Any] = {"tp_group": None, "pp_rank": 0, "pp_size": 1, "pp_group": None} | changes
    return Layout(weights, SIZES, **values)


def test_local_layers_and_other_names_of_a_parameter_lead_to_its_tensor() -> None:
    model = Model()
    load_weights(model, {f"model.layers.{i}.a_norm.weight": torch.full((2,), float(i)) for i in range(4)}, layout())
    assert [parameter.tolist() for parameter in model.parameters.values()] == [[2.0, 2.0], [3.0, 3.0]]


def test_a_parameter_that_the_table_lacks_is_an_error() -> None:
    model = Model(**{"0.extra.bias": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"a parameter decoder\.layers\.2\.extra\.bias that the model's family does not have"):
        load_weights(model, {}, layout())


def test_a_parameter_that_megatron_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no parameter for 4 of the family's weights, embedding\.word_embeddings\.weight first"):
        list(export(Model(), layout()))


def test_a_tensor_of_another_shape_is_named() -> None:
    tensors = {f"model.layers.{i}.a_norm.weight": torch.zeros(5) for i in range(4)}
    with pytest.raises(ValueError, match=r"model\.layers\.2\.a_norm\.weight: shape \(5,\) for a parameter of \(2,\)"):
        load_weights(Model(), tensors, layout())


def test_a_copy_is_loaded_and_never_exported() -> None:
    copy = Weight("output_layer.weight", EMBEDDING.tensors, EMBEDDING.form, duplicate=True)
    assert tensor_names((EMBEDDING, copy)) == ["model.embed_tokens.weight"]
