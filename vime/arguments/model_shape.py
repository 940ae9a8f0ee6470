"""Model flags from a Hugging Face ``config.json``, read as plain JSON so that a dry run needs no library."""

from __future__ import annotations

import json
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
    if (heads := config.get("num_attention_heads")) and config.get("hidden_size"):
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


def parameter_count(args: Namespace) -> int:
    """Parameters of a dense or mixture-of-experts decoder with gated feed-forward layers, from the resolved model flags. Norms are left out."""
    hidden, layers = args.hidden_size, args.num_layers
    query, keys = args.num_attention_heads * args.kv_channels, args.num_query_groups * args.kv_channels
    attention = hidden * (query + 2 * keys) + query * hidden
    experts = args.num_experts or 0
    width = (args.moe_ffn_hidden_size or args.ffn_hidden_size) * experts if experts else args.ffn_hidden_size
    feed_forward = 3 * hidden * width + hidden * experts
    tables = 2 if args.untie_embeddings_and_output_weights else 1
    return layers * (attention + feed_forward) + tables * args.vocab_size * hidden


def _lookup(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _equal(given: Any, derived: Any) -> bool:
    if isinstance(given, float) or isinstance(derived, float):
        return abs(float(given) - float(derived)) <= 1e-9 * max(1.0, abs(float(derived)))
    return bool(given == derived)
