"""Which model types are supported, and their weights: Megatron parameter -> rule over Hugging Face names, in export order.

A family says how its configuration is read and in what its weights differ from those of a plain decoder; everything else
follows from the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from vime.convert.rules import Columns, FusedGateUp, GateUp, QueryKeyValue, Rows, Rule, Vocabulary, Whole
from vime.convert.shape import Experts, ModelShape

Switch = Callable[[Any], bool]


def _always(config: Any) -> bool:
    return True


def _never(config: Any) -> bool:
    return False


@dataclass(frozen=True)
class Says:
    """A switch that a field of the configuration sets."""

    field: str

    def __call__(self, config: Any) -> bool:
        return bool(getattr(config, self.field, False))


def _softmax_experts(config: Any) -> Experts:
    step = config.decoder_sparse_step
    dense = {i for i in range(config.num_hidden_layers) if i in (config.mlp_only_layers or []) or (i + 1) % step}
    return Experts(
        count=config.num_experts,
        top=config.num_experts_per_tok,
        ffn=config.moe_intermediate_size,
        normalised=config.norm_topk_prob,
        dense=frozenset(dense),
    )


def _sigmoid_experts(config: Any) -> Experts:
    grouped = config.n_group > 1
    return Experts(
        count=config.n_routed_experts,
        top=config.num_experts_per_tok,
        ffn=config.moe_intermediate_size,
        shared_ffn=config.moe_intermediate_size * (config.n_shared_experts or 0),
        score="sigmoid",
        normalised=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        bias=True,
        groups=config.n_group if grouped else None,
        top_groups=config.topk_group if grouped else None,
        dense=frozenset(range(config.first_k_dense_replace)),
    )


@dataclass(frozen=True)
class Family:
    """In what a model type differs from a plain decoder (RMSNorm, gated SiLU, grouped queries, rotary positions)."""

    qkv_bias: Switch = _never
    qk_norm: Switch = _never
    interleaved: Switch = _never
    post_norms: bool = False
    fused_gate_up: bool = False
    latent: bool = False
    experts: Callable[[Any], Experts] | None = None


FAMILIES: dict[str, Family] = {
    "deepseek_v3": Family(latent=True, interleaved=Says("rope_interleave"), experts=_sigmoid_experts),
    "glm4": Family(qkv_bias=Says("attention_bias"), interleaved=_always, post_norms=True, fused_gate_up=True),
    "glm4_moe": Family(qkv_bias=Says("attention_bias"), qk_norm=Says("use_qk_norm"), experts=_sigmoid_experts),
    "llama": Family(),
    "qwen2": Family(qkv_bias=_always),
    "qwen3": Family(qk_norm=_always),
    "qwen3_moe": Family(qk_norm=_always, experts=_softmax_experts),
}


def supported() -> tuple[str, ...]:
    """Model types that can be converted, as Hugging Face spells them."""
    return tuple(sorted(FAMILIES))


@dataclass(frozen=True)
class Entry:
    """One Megatron parameter: its name with layers and experts counted over the whole model, and how it is made."""

    name: str
    rule: Rule
    layer: int | None = None
    expert: int | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Hugging Face names, in the order in which they are exported."""
        return tuple(self.fill(source) for source in self.rule.sources)

    def fill(self, pattern: str) -> str:
        """A name pattern of the rule with this entry's layer and expert in it."""
        return pattern.format(i=self.layer, e=self.expert)


Table = dict[str, Rule]
_HF = "model.layers.{i}."


def _heads(suffix: str) -> QueryKeyValue:
    return QueryKeyValue(*(f"{_HF}self_attn.{part}_proj.{suffix}" for part in "qkv"))


def _gate_up(prefix: str) -> GateUp:
    return GateUp(f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight")


def _attention(shape: ModelShape) -> Table:
    attention, latent = _HF + "self_attn.", shape.latent
    table: Table = {}
    if latent is None:
        table["linear_qkv.weight"] = _heads("weight")
        if shape.qkv_bias:
            table["linear_qkv.bias"] = _heads("bias")
        if shape.qk_norm:
            table["q_layernorm.weight"] = Whole(attention + "q_norm.weight")
            table["k_layernorm.weight"] = Whole(attention + "k_norm.weight")
    else:
        if latent.query_rank is None:
            table["linear_q_proj.weight"] = Rows(attention + "q_proj.weight")
        else:
            table["linear_q_down_proj.weight"] = Rows(attention + "q_a_proj.weight")
            table["q_layernorm.weight"] = Whole(attention + "q_a_layernorm.weight")
            table["linear_q_up_proj.weight"] = Rows(attention + "q_b_proj.weight")
        table["linear_kv_down_proj.weight"] = Rows(attention + "kv_a_proj_with_mqa.weight")
        table["kv_layernorm.weight"] = Whole(attention + "kv_a_layernorm.weight")
        table["linear_kv_up_proj.weight"] = Rows(attention + "kv_b_proj.weight")
    table["linear_proj.weight"] = Columns(attention + "o_proj.weight")
    return {"self_attention." + name: rule for name, rule in table.items()}


def _norms(shape: ModelShape) -> Table:
    table: Table = {
        "input_layernorm.weight": Whole(_HF + "input_layernorm.weight"),
        "pre_mlp_layernorm.weight": Whole(_HF + "post_attention_layernorm.weight"),
    }
    if shape.post_norms:
        table |= {
            f"{name}.weight": Whole(f"{_HF}{name}.weight")
            for name in ("post_self_attn_layernorm", "post_mlp_layernorm")
        }
    return table


def _dense(shape: ModelShape) -> Table:
    fused = FAMILIES[shape.model_type].fused_gate_up
    return {
        "mlp.linear_fc1.weight": FusedGateUp(_HF + "mlp.gate_up_proj.weight") if fused else _gate_up(_HF + "mlp."),
        "mlp.linear_fc2.weight": Columns(_HF + "mlp.down_proj.weight"),
    }


def _around_experts(experts: Experts) -> Table:
    table: Table = {"mlp.router.weight": Whole(_HF + "mlp.gate.weight")}
    if experts.bias:
        table["mlp.router.expert_bias"] = Whole(_HF + "mlp.gate.e_score_correction_bias")
    if experts.shared_ffn:
        shared = _HF + "mlp.shared_experts."
        table["mlp.shared_experts.linear_fc1.weight"] = _gate_up(shared)
        table["mlp.shared_experts.linear_fc2.weight"] = Columns(shared + "down_proj.weight")
    return table


_EXPERT: Table = {
    "mlp.experts.local_experts.{e}.linear_fc1.weight": _gate_up(_HF + "mlp.experts.{e}."),
    "mlp.experts.local_experts.{e}.linear_fc2.weight": Columns(_HF + "mlp.experts.{e}.down_proj.weight"),
}


def entries(shape: ModelShape) -> Iterator[Entry]:
    """Every parameter of a model of `shape`, in export order. The output is left out when it is the embedding."""
    yield Entry("embedding.word_embeddings.weight", Vocabulary("model.embed_tokens.weight"))
    for i in range(shape.layers):
        table = _norms(shape) | _attention(shape)
        table |= _around_experts(shape.experts) if shape.experts and shape.has_experts(i) else _dense(shape)
        yield from (Entry(f"decoder.layers.{i}.{name}", rule, i) for name, rule in table.items())
        if shape.experts is not None and shape.has_experts(i):
            for e in range(shape.experts.count):
                yield from (Entry(f"decoder.layers.{i}.{n.format(e=e)}", rule, i, e) for n, rule in _EXPERT.items())
    yield Entry("decoder.final_layernorm.weight", Whole("model.norm.weight"))
    if not shape.tied:
        yield Entry("output_layer.weight", Vocabulary("lm_head.weight"))
