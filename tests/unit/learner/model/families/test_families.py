"""What families promise: a file each, tables without gaps, refusals in words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import learner.model.families
from learner.model.families import find_family, known_families
from learner.model.families.family import Family
from schemas.errors import ConfigError


def config(**changes: Any) -> SimpleNamespace:
    """transformers' config, as far as the tables and refusals read it."""
    return SimpleNamespace(**{"num_hidden_layers": 2, "tie_word_embeddings": False, "hidden_act": "silu", **changes})


def test_the_known_families_are_the_files_of_the_folder() -> None:
    folder = Path(learner.model.families.__file__).parent
    assert set(known_families()) == {file.stem for file in folder.glob("*.py")} - {"__init__", "family", "forms"}
    assert {"llama", "qwen2", "qwen3"} <= set(known_families())


@pytest.mark.parametrize("name", known_families())
def test_every_parameter_and_every_tensor_stands_in_a_familys_table_once(name: str) -> None:
    weights = find_family(name, "m").weights(config())
    tensors = [tensor for weight in weights for tensor in weight.tensors]
    parameters = [parameter for weight in weights for parameter in (weight.megatron, *weight.aliases)]
    assert len(set(tensors)) == len(tensors)
    assert len(set(parameters)) == len(parameters)
    assert [weights[0].megatron, weights[-1].megatron] == ["embedding.word_embeddings.weight", "output_layer.weight"]


def test_switches_add_their_parameters() -> None:
    def tensors(family: Family) -> set[str]:
        return {name for weight in family.weights(config(num_hidden_layers=1)) for name in weight.tensors}

    plain = tensors(Family())
    attention = "model.layers.0.self_attn."
    assert tensors(Family(qk_norm=True)) - plain == {f"{attention}q_norm.weight", f"{attention}k_norm.weight"}
    assert tensors(Family(qkv_bias=True)) - plain == {f"{attention}{part}_proj.bias" for part in "qkv"}


def test_a_tied_head_is_a_copy_of_the_embedding() -> None:
    embedding, *_, head = Family().weights(config(tie_word_embeddings=True))
    assert head.tensors == embedding.tensors
    assert (head.duplicate, embedding.duplicate) == (True, False)


def test_an_unknown_family_is_refused_with_the_known_ones_and_the_page() -> None:
    with pytest.raises(ConfigError, match=r"model_type 'gpt-neo'; the learner knows llama, .*; docs/models\.md"):
        find_family("gpt-neo", "m")
    with pytest.raises(ConfigError, match="names no model_type"):
        find_family(None, "m")
    with pytest.raises(ConfigError, match="model_type 'family'"):
        find_family("family", "m")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attention_bias": True}, "attention_bias True; the learner knows models without attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window True"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'; the learner knows silu"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn'; the learner knows default, linear, llama3"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(changes: dict[str, Any], says: str) -> None:
    (problem,) = Family().problems(config(**changes), "m")
    assert says in str(problem)


def test_an_option_that_is_switched_off_is_no_problem() -> None:
    assert list(Family().problems(config(attention_bias=False, use_sliding_window=None), "m")) == []
