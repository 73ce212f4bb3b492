"""What a family is, with the defaults of a dense decoder: RMSNorm, rotary positions, grouped queries, a gated MLP, no biases.

`Family` has three kinds of parts, from the often changed to the rarely changed: switches (its fields), tables (`layer_weights`,
which says what each Megatron parameter is made of) and hooks (`transformer_options`, `block_spec`, `model_options`, `finish`,
which say what Megatron builds). A family sets fields; one that differs further is a subclass that overrides a method.

torch and megatron are imported inside the hooks only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from learner.model.families.forms import COLUMNS, GATE_UP, QKV, SAME, VOCABULARY, Form
from learner.model.layers.rope import ROPES, Rope, rope_parameters
from schemas.errors import Problem


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter of the Megatron model, and the checkpoint's tensors that it is made of."""

    megatron: str
    """Its name in Megatron's local layer spec: of the whole model, or below a layer."""
    tensors: tuple[str, ...]
    """Names in the checkpoint, in the order that `form` takes them."""
    form: Form = SAME
    aliases: tuple[str, ...] = ()
    """Other names of it: Transformer Engine keeps a norm inside the layer that follows."""
    duplicate: bool = False
    """A second copy of another parameter's tensors: loaded where Megatron has it, never exported."""

    def below(self, megatron: str, checkpoint: str) -> Weight:
        """The same, with prefixes before the names of both sides."""
        return replace(
            self,
            megatron=megatron + self.megatron,
            tensors=tuple(checkpoint + name for name in self.tensors),
            aliases=tuple(megatron + name for name in self.aliases),
        )


EMBEDDING = Weight("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), VOCABULARY)
LAST_NORM = Weight("decoder.final_layernorm.weight", ("model.norm.weight",))
HEAD = Weight("output_layer.weight", ("lm_head.weight",), VOCABULARY)

QKV_BIAS = "self_attention.linear_qkv.bias"
Q_NORM, K_NORM = "self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"

DENSE_LAYER: tuple[Weight, ...] = (
    Weight("input_layernorm.weight", ("input_layernorm.weight",), aliases=("self_attention.linear_qkv.layer_norm_weight",)),
    Weight(
        "self_attention.linear_qkv.weight",
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        QKV,
    ),
    Weight(QKV_BIAS, ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"), QKV),
    Weight(Q_NORM, ("self_attn.q_norm.weight",)),
    Weight(K_NORM, ("self_attn.k_norm.weight",)),
    Weight("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), COLUMNS),
    Weight("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), aliases=("mlp.linear_fc1.layer_norm_weight",)),
    Weight("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight"), GATE_UP),
    Weight("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), COLUMNS),
)
"""A layer with everything that a switch can add. In this order the weights of a layer are exported and sent."""


@dataclass(frozen=True)  # without slots, so that a subclass may call super() whatever its own decorator
class Family:
    """One kind of model. In all methods `hf` is transformers' config of the checkpoint."""

    qk_norm: bool = False
    """Queries and keys go through an RMSNorm each, per head, before the rotation."""
    qkv_bias: bool = False
    """The q, k and v projections have a bias."""
    activation: str = "silu"
    """Of the gated MLP: the only `hidden_act` that is taken, and the name in torch.nn.functional."""
    refused: tuple[str, ...] = ("attention_bias", "mlp_bias", "use_sliding_window")
    """Options of the config that change what is computed, and that the learner does not compute: they must be absent or false."""
    ropes: Mapping[str, Rope] = field(default_factory=lambda: ROPES)
    """The forms of `rope_type` that are taken."""

    def problems(self, hf: Any, folder: str) -> Iterator[Problem]:
        """Why this checkpoint would be computed otherwise than transformers does it; nothing if it would not."""

        def problem(key: str, value: Any, known: str) -> Problem:
            return Problem("model.path", folder, f"its config has {key} {value!r}", f"the learner knows {known}")

        # transformers has renamed and merged rope keys into `rope_parameters`, so this is asked of its config, not of the file.
        form = rope_parameters(hf)["rope_type"]
        if form not in self.ropes:
            yield problem("rope_type", form, ", ".join(self.ropes))
        if hf.hidden_act != self.activation:
            yield problem("hidden_act", hf.hidden_act, self.activation)
        for key in self.refused:
            if getattr(hf, key, False):  # absent in a config is off
                yield problem(key, True, f"models without {key}")

    # --- names ----------------------------------------------------------------------------------------------------------------

    def weights(self, hf: Any) -> tuple[Weight, ...]:
        """All parameters of the whole model, in the order in which they are exported and sent."""
        # As in the forward pass. A transfer's buckets are ordered by name; a gather near that order keeps few of them open.
        layers = [
            weight.below(f"decoder.layers.{layer}.", f"model.layers.{layer}.")
            for layer in range(hf.num_hidden_layers)
            for weight in self.layer_weights(hf, layer)
        ]
        return (EMBEDDING, *layers, LAST_NORM, self.head(hf))

    def layer_weights(self, hf: Any, layer: int) -> Sequence[Weight]:
        """The parameters of one layer (from 0), without its prefix. Layers may differ, as dense and sparse ones do."""
        absent = set() if self.qkv_bias else {QKV_BIAS}
        absent |= set() if self.qk_norm else {Q_NORM, K_NORM}
        return [weight for weight in DENSE_LAYER if weight.megatron not in absent]

    def head(self, hf: Any) -> Weight:
        """A tied head shares the embedding's tensor. With several pipeline stages the last one still holds a
        copy of it under the head's name, whose gradient megatron adds to the embedding's."""
        return replace(HEAD, tensors=EMBEDDING.tensors, duplicate=True) if self.tied(hf) else HEAD

    def tied(self, hf: Any) -> bool:
        return bool(hf.tie_word_embeddings)

    # --- what Megatron builds -------------------------------------------------------------------------------------------------

    def transformer_options(self, hf: Any) -> dict[str, Any]:
        """Keyword arguments of `TransformerConfig` that describe the model; `spec.py` adds those that describe the run."""
        import torch.nn.functional

        return {
            "num_layers": hf.num_hidden_layers,
            "hidden_size": hf.hidden_size,
            "ffn_hidden_size": hf.intermediate_size,
            "num_attention_heads": hf.num_attention_heads,
            "num_query_groups": hf.num_key_value_heads,
            "kv_channels": int(getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads),
            "normalization": "RMSNorm",
            # megatron's default is 1e-5 whatever the checkpoint was trained with.
            "layernorm_epsilon": hf.rms_norm_eps,
            "gated_linear_unit": True,
            "activation_func": getattr(torch.nn.functional, self.activation),
            "add_bias_linear": False,
            "add_qkv_bias": self.qkv_bias,
            "qk_layernorm": self.qk_norm,
            # Hugging Face rotates halves of a head; interleaved pairs would need q and k permuted on loading.
            "rotary_interleaved": False,
        }

    def block_spec(self, config: Any) -> Any:
        """The layers of this rank's pipeline stage, for `GPTModel`. `config` is the `TransformerConfig`."""
        from learner.model.layers.blocks import dense_block

        return dense_block(config)

    def model_options(self, hf: Any, config: Any) -> dict[str, Any]:
        """Keyword arguments of `GPTModel` that describe the model. `config` is the `TransformerConfig`."""
        rope = rope_parameters(hf)
        return {
            "max_sequence_length": hf.max_position_embeddings,
            "position_embedding_type": "rope",
            "rotary_percent": 1.0,
            "rotary_base": rope["rope_theta"],
            "share_embeddings_and_output_weights": self.tied(hf),
            **self.ropes[rope["rope_type"]].options(rope, config),
        }

    def finish(self, model: Any, hf: Any) -> None:
        """Change the built `GPTModel` of this rank where Megatron has no argument for it; its weights are not set yet."""
        rope = rope_parameters(hf)
        self.ropes[rope["rope_type"]].finish(model, rope)
