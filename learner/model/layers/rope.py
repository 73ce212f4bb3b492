"""Rotary position embeddings: each form of scaling that a config.json can name, in Megatron's terms.

A family names the forms that it takes. A new form is a subclass of `Rope` and a line in `ROPES`, or stands in the family's own
file if no other family has it. torch is not imported when this module is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Parameters = Mapping[str, Any]
"""`rope_parameters` of a config: `rope_type`, `rope_theta` and what that type needs."""


def rope_parameters(hf: Any) -> dict[str, Any]:
    """The parameters of transformers' config `hf`, with the defaults of a config that names none."""
    return {"rope_type": "default", "rope_theta": 10000.0, **(getattr(hf, "rope_parameters", None) or {})}


class Rope:
    """No scaling."""

    def options(self, parameters: Parameters, config: Any) -> dict[str, Any]:
        """Keyword arguments of `GPTModel`, besides the base. `config`: the `TransformerConfig`, which megatron reads the numbers
        of some forms from."""
        return {}

    def finish(self, model: Any, parameters: Parameters) -> None:
        """Change what the built `GPTModel` of this rank computes, where its arguments are not enough."""


class Linear(Rope):
    """Positions divided by a factor."""

    def options(self, parameters: Parameters, config: Any) -> dict[str, Any]:
        return {"seq_len_interpolation_factor": parameters["factor"]}


class Llama3(Rope):
    """Low frequencies divided by a factor, high ones kept, a smooth passage between them."""

    def options(self, parameters: Parameters, config: Any) -> dict[str, Any]:
        return {"rope_scaling": True, "rope_scaling_factor": parameters["factor"]}

    def finish(self, model: Any, parameters: Parameters) -> None:
        """megatron 0.16 takes the bounds (1, 4) and the context (8192) of Llama 3.1 for granted, whatever the config says."""
        import torch

        # Every stage has the module, also those without an embedding: rotations happen in each layer.
        rotary, width = model.rotary_pos_emb, model.config.kv_channels
        inverse = 1.0 / parameters["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
        bounds = [
            parameters[key] for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        ]
        rotary.inv_freq = rotary._apply_scaling(inverse, *bounds).to(rotary.inv_freq.device)  # noqa: SLF001


ROPES: Mapping[str, Rope] = {"default": Rope(), "linear": Linear(), "llama3": Llama3()}
