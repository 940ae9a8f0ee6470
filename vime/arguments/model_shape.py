"""Model flags from a Hugging Face ``config.json``, read as plain JSON so that a dry run needs no library."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime.errors import Problem, UsageError

#: Flag attribute -> the keys of config.json that may hold it, first match wins. Keys with a dot are nested.
_KEYS = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "ffn_hidden_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads",),
    "num_query_groups": ("num_key_value_heads", "num_attention_heads"),
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("max_position_embeddings",),
    "norm_epsilon": ("rms_norm_eps",),
    "rotary_base": ("rope_theta", "rope_parameters.rope_theta"),
    "num_experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "moe_ffn_hidden_size": ("moe_intermediate_size",),
    "moe_router_topk": ("num_experts_per_tok",),
    "moe_shared_expert_intermediate_size": ("shared_expert_intermediate_size",),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_head_dim": ("qk_nope_head_dim",),
    "qk_pos_emb_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "mscale": ("rope_scaling.mscale", "rope_parameters.mscale"),
    "mscale_all_dim": ("rope_scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"),
}


def read_hf_config(folder: str) -> dict[str, Any]:
    """config.json of a checkpoint folder; the text part of a multimodal one. Raises UsageError when it cannot be read."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"unreadable configuration: {error}", where=str(path)) from error
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def shape_flags(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model flags that `config` determines; those it says nothing about are left out."""
    flags: dict[str, Any] = {}
    for name, keys in _KEYS.items():
        value = next((found for key in keys if (found := _lookup(config, key)) is not None), None)
        if value is not None:
            flags[name] = value
    if config.get("kv_lora_rank"):
        # Latent attention has no key and value heads, whatever a configuration says of them.
        flags.pop("num_query_groups", None)
        flags["multi_latent_attention"] = True
        if count := config.get("n_shared_experts"):
            flags["moe_shared_expert_intermediate_size"] = count * config["moe_intermediate_size"]
    elif (heads := config.get("num_attention_heads")) and config.get("hidden_size"):
        flags["kv_channels"] = config.get("head_dim") or config["hidden_size"] // heads
        flags["group_query_attention"] = flags["num_query_groups"] != heads
    if "tie_word_embeddings" in config:
        flags["untie_embeddings_and_output_weights"] = not config["tie_word_embeddings"]
    if "rms_norm_eps" in config:
        flags |= {"normalization": "RMSNorm", "position_embedding_type": "rope", "use_rotary_position_embeddings": True}
    if config.get("hidden_act") in ("silu", "swish"):
        flags["swiglu"] = True
    model_type = str(config.get("model_type", ""))
    if model_type.startswith("qwen2"):
        flags |= {"add_qkv_bias": True, "qk_layernorm": False}
    if model_type.startswith("qwen3"):
        flags |= {"add_qkv_bias": bool(config.get("attention_bias", False)), "qk_layernorm": True}
    return flags


def contradictions(args: Namespace, flags: Mapping[str, Any], where: str) -> list[Problem]:
    """A problem for each model flag that the user gave and the checkpoint denies."""
    wrong = {
        name: value for name, value in flags.items() if name in args.given and not _equal(getattr(args, name), value)
    }
    return [
        Problem(
            f"--{name.replace('_', '-')} {getattr(args, name)} contradicts {where}, which says {value}",
            "leave model flags out: they are read from the checkpoint",
        )
        for name, value in wrong.items()
    ]


def complete_shape(args: Namespace) -> None:
    """Megatron's defaults for what neither a checkpoint nor a flag says: heads of equal width, keys and values for each of them."""
    if args.hidden_size is None or args.num_attention_heads is None:
        return
    if args.kv_channels is None:
        args.kv_channels = args.hidden_size // args.num_attention_heads
    if args.num_query_groups is None:
        args.num_query_groups = args.num_attention_heads
    if args.ffn_hidden_size is None:
        args.ffn_hidden_size = args.moe_ffn_hidden_size or 4 * args.hidden_size


def parameter_count(args: Namespace) -> int:
    """Parameters of a dense or mixture-of-experts decoder with gated feed-forward layers, from the resolved model flags. Norms are left out."""
    hidden, layers = args.hidden_size, args.num_layers
    experts = args.num_experts or 0
    sparse = _expert_layers(args) if experts else 0
    shared = args.moe_shared_expert_intermediate_size or 0
    mixture = 3 * hidden * ((args.moe_ffn_hidden_size or args.ffn_hidden_size) * experts + shared) + hidden * experts
    feed_forward = sparse * mixture + (layers - sparse) * 3 * hidden * args.ffn_hidden_size
    tables = 2 if args.untie_embeddings_and_output_weights else 1
    return layers * _attention_parameters(args) + feed_forward + tables * args.vocab_size * hidden


def cache_width(args: Namespace) -> int:
    """Numbers that an engine caches for a token in one layer: keys and values, or their compressed form with latent attention."""
    if args.multi_latent_attention:
        return int(args.kv_lora_rank + args.qk_pos_emb_head_dim)
    return int(2 * args.num_query_groups * args.kv_channels)


def _attention_parameters(args: Namespace) -> int:
    hidden, heads = args.hidden_size, args.num_attention_heads
    if not args.multi_latent_attention:
        query, keys = heads * args.kv_channels, args.num_query_groups * args.kv_channels
        return int(hidden * (query + 2 * keys) + query * hidden)
    head = args.qk_head_dim + args.qk_pos_emb_head_dim
    queries = args.q_lora_rank * (hidden + heads * head) if args.q_lora_rank else hidden * heads * head
    keys = hidden * (args.kv_lora_rank + args.qk_pos_emb_head_dim)
    values = args.kv_lora_rank * heads * (args.qk_head_dim + args.v_head_dim) + heads * args.v_head_dim * hidden
    return int(queries + keys + values)


def _expert_layers(args: Namespace) -> int:
    """How many layers have experts: ``--moe-layer-freq`` is N for every N-th, or a pattern such as ``[0]*1+[1]*45``."""
    pattern = args.moe_layer_freq
    if pattern is None:
        return int(args.num_layers) - int(args.hf_config.get("first_k_dense_replace") or 0)
    repeats = [
        sum(int(one) for one in items.split(",")) * int(count or 1)
        for items, count in re.findall(r"\[([\d,\s]*)\](?:\s*\*\s*(\d+))?", pattern)
        if items.strip()
    ]
    return sum(repeats) if repeats else int(args.num_layers) // max(1, int(pattern))


def _lookup(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _equal(given: Any, derived: Any) -> bool:
    if isinstance(given, float) or isinstance(derived, float):
        return abs(float(given) - float(derived)) <= 1e-9 * max(1.0, abs(float(derived)))
    return bool(given == derived)
