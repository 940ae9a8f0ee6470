"""Megatron's configuration and layer specification of a model shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig

from vime.arguments.megatron import given_fields
from vime.convert.shape import Experts, Latent, ModelShape
from vime.errors import VimeError
from vime.trainer.attention import PackedAttention
from vime.trainer.kernels import RmsNorm, SwiGlu
from vime.trainer.layers import LatentAttention, LatentCore, PostNormLayer
from vime.trainer.parallel import Layout

if not hasattr(moe_utils, "te_general_gemm"):
    # Its router asks for this name, which its guarded import leaves undefined where Transformer Engine is absent.
    moe_utils.te_general_gemm = None


def transformer_config(shape: ModelShape, args: Any, device: torch.device, layout: Layout) -> TransformerConfig:
    """Megatron's configuration of a model of `shape`. Raises VimeError when the ranks do not divide it."""
    for flag, what, number, ranks in _divisions(shape, layout):
        if number % ranks:
            raise VimeError(f"{number} {what} cannot be cut over --{flag} {ranks}")
    if shape.experts is not None and layout.tensor > 1 and not layout.sequence:
        raise VimeError("experts and --tensor-model-parallel-size need --sequence-parallel", hint="add it")
    if shape.experts is not None and layout.expert == 1 and layout.expert_tensor != layout.tensor:
        # Megatron would sum the gradients of such experts over too few ranks.
        raise VimeError(
            f"--expert-tensor-parallel-size {layout.expert_tensor} with --tensor-model-parallel-size {layout.tensor} needs "
            "--expert-model-parallel-size over 1"
        )
    if layout.sequence and layout.context > 1:
        raise VimeError("--sequence-parallel with --context-parallel-size is not supported", hint="use one of them")
    if layout.expert > 1 and shape.experts is None:
        raise VimeError(f"--expert-model-parallel-size {layout.expert}: {shape.model_type} has no experts")
    dtype = training_dtype(args)
    ours: dict[str, Any] = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.groups,
        "kv_channels": shape.head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": shape.norm_eps,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "use_te_activation_func": True,  # take the activation from the layer spec
        "add_bias_linear": False,
        "add_qkv_bias": shape.qkv_bias,
        "qk_layernorm": shape.qk_norm,
        "softmax_scale": shape.attention_scale,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "num_layers_in_first_pipeline_stage": layout.first_layers,
        "num_layers_in_last_pipeline_stage": layout.last_layers,
        "variable_seq_lengths": layout.pipeline > 1,  # between stages; packed rows have any length
        "sequence_parallel": layout.sequence,
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        # Weights always come from a checkpoint, so none are drawn.
        "perform_initialization": False,
        "use_cpu_initialization": device.type == "cpu",
        # Denominators are computed by us, over the whole step (see `reduce`): Megatron must sum gradients, not average.
        "calculate_per_token_loss": True,
        # Fused kernels need Apex or Transformer Engine.
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "apply_rope_fusion": False,
        "cuda_graph_scope": [],
        "recompute_granularity": args.recompute_granularity,
        "recompute_method": args.recompute_method,
        "recompute_num_layers": args.recompute_num_layers,
    }
    if shape.latent is not None:
        ours |= _latent_fields(shape.latent)
    if shape.experts is not None:
        ours |= _expert_fields(shape.experts)
    # Other fields of Megatron's configuration that the user set; those above are the trainer's own.
    fields = _DEFAULTS | given_fields(args, "TransformerConfig") | ours
    if layout.expert > 1 or layout.pipeline > 1:
        # Rows of different lengths, which the other dispatcher takes for equal, or with stages refuses.
        fields["moe_token_dispatcher_type"] = "alltoall"
    return (TransformerConfig if shape.latent is None else MLATransformerConfig)(**fields)


#: Choices that a flag may change.
_DEFAULTS: dict[str, Any] = {
    "moe_token_dispatcher_type": "allgather",
    "moe_router_load_balancing_type": "none",
    # A policy that is being trained keeps the routing it was given, unless asked otherwise.
    "moe_router_bias_update_rate": 0.0,
}


def _divisions(shape: ModelShape, layout: Layout) -> Iterator[tuple[str, str, int, int]]:
    tensor = "tensor-model-parallel-size"
    yield tensor, "attention heads", shape.heads, layout.tensor
    yield tensor, "ffn width", shape.ffn, layout.tensor
    if shape.latent is None:
        yield tensor, "key/value heads", shape.groups, layout.tensor
    else:
        yield tensor, "latent width", shape.latent.kv_rank + shape.latent.rotated, layout.tensor
        yield tensor, "query rank", shape.latent.query_rank or 0, layout.tensor
    if shape.experts is not None:
        yield tensor, "shared expert width", shape.experts.shared_ffn, layout.tensor
        yield "expert-model-parallel-size", "experts", shape.experts.count, layout.expert
        yield "expert-tensor-parallel-size", "expert width", shape.experts.ffn, layout.expert_tensor


def _latent_fields(latent: Latent) -> dict[str, Any]:
    return {
        "multi_latent_attention": True,
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_head_dim": latent.plain,
        "qk_pos_emb_head_dim": latent.rotated,
        "v_head_dim": latent.value,
        "rope_type": "rope",  # built, and never asked: see `LatentAttention`
    }


def _expert_fields(experts: Experts) -> dict[str, Any]:
    return {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.top,
        "moe_ffn_hidden_size": experts.ffn,
        "moe_shared_expert_intermediate_size": experts.shared_ffn or None,
        "moe_router_score_function": experts.score,
        # Softmax over the chosen experts is the normalised softmax over all of them.
        "moe_router_pre_softmax": not experts.normalised and experts.score == "softmax",
        "moe_router_topk_scaling_factor": experts.scale,
        "moe_router_enable_expert_bias": experts.bias,
        "moe_router_num_groups": experts.groups,
        "moe_router_group_topk": experts.top_groups,
        "moe_router_dtype": "fp32" if experts.score == "sigmoid" else None,
    }


def training_dtype(args: Any) -> torch.dtype:
    """bfloat16 with --bf16, else float32."""
    if args.fp16:
        raise VimeError("--fp16 is not supported by the trainer", hint="use --bf16, or neither for float32")
    return torch.bfloat16 if args.bf16 else torch.float32


def block_spec(config: TransformerConfig, shape: ModelShape, layers: Iterable[int]) -> TransformerBlockSubmodules:
    """Megatron's local layer specs of these layers, with our packed attention, norms and activation in them."""
    kinds = [shape.has_experts(i) for i in layers]
    made = {experts: layer_spec(config, shape, experts) for experts in set(kinds)}
    specs = [made[experts] for experts in kinds]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=RmsNorm)


def layer_spec(config: TransformerConfig, shape: ModelShape, experts: bool) -> ModuleSpec:
    """A layer with or without experts."""
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if experts else None,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=shape.latent is not None,
        normalization=config.normalization,
    )
    if shape.post_norms:
        spec.module = PostNormLayer
    layer, attention = spec.submodules, spec.submodules.self_attention
    layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
    if shape.latent is not None:
        attention.module, attention.submodules.core_attention = LatentAttention, LatentCore
        attention.submodules.q_layernorm = attention.submodules.kv_layernorm = RmsNorm
    else:
        attention.submodules.core_attention = PackedAttention
        if config.qk_layernorm:
            attention.submodules.q_layernorm = attention.submodules.k_layernorm = RmsNorm
    feed_forward = layer.mlp.submodules
    for mlp in (
        (feed_forward.experts.submodules, feed_forward.shared_experts.submodules) if experts else (feed_forward,)
    ):
        mlp.activation_func = SwiGlu
    return spec
