"""One table a model family: Megatron parameter pattern -> rule over Hugging Face names, in export order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vime.convert.rules import Columns, GateUp, QueryKeyValue, Rule, Vocabulary, Whole

if TYPE_CHECKING:
    from vime.convert.config import ModelShape

_HF = "model.layers.{i}."
_MEGATRON = "decoder.layers.{i}."


@dataclass(frozen=True)
class Family:
    """`layer` is repeated for each layer; `before` and `after` are not. `output` is left out when embeddings are tied."""

    layer: dict[str, Rule]
    before: dict[str, Rule] = field(
        default_factory=lambda: {"embedding.word_embeddings.weight": Vocabulary("model.embed_tokens.weight")}
    )
    after: dict[str, Rule] = field(
        default_factory=lambda: {"decoder.final_layernorm.weight": Whole("model.norm.weight")}
    )
    output: dict[str, Rule] = field(default_factory=lambda: {"output_layer.weight": Vocabulary("lm_head.weight")})
    qkv_bias: bool = False
    qk_norm: bool = False

    def rules(self, shape: ModelShape) -> Iterator[tuple[str, Rule, int]]:
        """(Megatron name, rule, layer) for each parameter, in export order; patterns of the rule take that layer."""
        yield from ((name, rule, 0) for name, rule in self.before.items())
        for i in range(shape.layers):
            yield from ((name.format(i=i), rule, i) for name, rule in self.layer.items())
        yield from ((name, rule, 0) for name, rule in self.after.items())
        if not shape.tied:
            yield from ((name, rule, 0) for name, rule in self.output.items())


def _qkv(suffix: str) -> QueryKeyValue:
    return QueryKeyValue(*(f"{_HF}self_attn.{part}_proj.{suffix}" for part in "qkv"))


_DENSE: dict[str, Rule] = {
    _MEGATRON + "input_layernorm.weight": Whole(_HF + "input_layernorm.weight"),
    _MEGATRON + "self_attention.linear_qkv.weight": _qkv("weight"),
    _MEGATRON + "self_attention.linear_proj.weight": Columns(_HF + "self_attn.o_proj.weight"),
    _MEGATRON + "pre_mlp_layernorm.weight": Whole(_HF + "post_attention_layernorm.weight"),
    _MEGATRON + "mlp.linear_fc1.weight": GateUp(_HF + "mlp.gate_proj.weight", _HF + "mlp.up_proj.weight"),
    _MEGATRON + "mlp.linear_fc2.weight": Columns(_HF + "mlp.down_proj.weight"),
}
_QKV_BIAS: dict[str, Rule] = {_MEGATRON + "self_attention.linear_qkv.bias": _qkv("bias")}
_QK_NORM: dict[str, Rule] = {
    _MEGATRON + "self_attention.q_layernorm.weight": Whole(_HF + "self_attn.q_norm.weight"),
    _MEGATRON + "self_attention.k_layernorm.weight": Whole(_HF + "self_attn.k_norm.weight"),
}

FAMILIES: dict[str, Family] = {
    "llama": Family(_DENSE),
    "qwen2": Family(_DENSE | _QKV_BIAS, qkv_bias=True),
    "qwen3": Family(_DENSE | _QK_NORM, qk_norm=True),
}


def supported() -> tuple[str, ...]:
    """Model types that can be converted, as Hugging Face spells them."""
    return tuple(sorted(FAMILIES))
