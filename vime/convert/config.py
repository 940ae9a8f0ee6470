"""Hugging Face configurations -> shapes, and whether the flags agree with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vime.convert.families import FAMILIES, Says, supported
from vime.convert.shape import Latent, ModelShape
from vime.errors import VimeError

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def read_hf_config(directory: str | Path) -> Any:
    """The transformers configuration of a local checkpoint. Raises VimeError when there is none or its type is unsupported."""
    path = Path(directory) / "config.json"
    try:
        model_type = json.loads(path.read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VimeError(
            "no readable Hugging Face configuration",
            where=str(path),
            hint="give a directory that holds config.json with a model_type and *.safetensors",
        ) from error
    require_supported(model_type, str(path))

    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(directory), trust_remote_code=False)


def model_shape(config: Any, where: str = "config.json") -> ModelShape:
    """Sizes of `config`. Raises VimeError naming the first setting that the trainer would compute wrongly."""
    require_supported(config.model_type, where)
    for name, value in _wrongly_computed(config):
        raise VimeError(f"{config.model_type} with {name}={value!r} is not supported by the trainer", where=where)
    family, rope = FAMILIES[config.model_type], config.rope_parameters
    latent = _latent(config) if family.latent else None
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelShape(
        model_type=config.model_type,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads or config.num_attention_heads,
        head_dim=latent.head if latent else head_dim,
        vocab=config.vocab_size,
        norm_eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        max_positions=config.max_position_embeddings,
        rope_theta=float(rope["rope_theta"]),
        rope_type=rope["rope_type"],
        rotated=latent.rotated if latent else int(head_dim * (rope.get("partial_rotary_factor") or 1.0)),
        interleaved=family.interleaved(config),
        qkv_bias=family.qkv_bias(config),
        qk_norm=family.qk_norm(config),
        post_norms=family.post_norms,
        attention_scale=_attention_scale(config, latent) if latent else None,
        latent=latent,
        experts=family.experts(config) if family.experts else None,
    )


def _wrongly_computed(config: Any) -> Iterator[tuple[str, Any]]:
    family, rope = FAMILIES[config.model_type], config.rope_parameters
    if config.hidden_act not in ("silu", "swish"):
        yield "hidden_act", config.hidden_act
    # The other families would also have a bias behind the attention.
    if getattr(config, "attention_bias", False) and not isinstance(family.qkv_bias, Says):
        yield "attention_bias", True
    for name in ("mlp_bias", "use_sliding_window", "attention_dropout"):
        if value := getattr(config, name, False):
            yield name, value
    if rope["rope_type"] not in _ROPE_TYPES:
        yield "rope_type", rope["rope_type"]
    partial = rope.get("partial_rotary_factor") or 1.0
    if partial != 1.0 and (family.latent or rope["rope_type"] != "default"):
        yield "partial_rotary_factor", partial
    if family.experts is None:
        return
    experts = family.experts(config)
    if experts.score == "sigmoid" and not experts.normalised:
        yield "norm_topk_prob", experts.normalised
    # The best two of a group stand for it; Megatron takes as many as a token may use of each.
    if experts.top_groups and experts.top // experts.top_groups != 2:
        yield "topk_group", experts.top_groups


def _latent(config: Any) -> Latent:
    return Latent(
        query_rank=config.q_lora_rank,
        kv_rank=config.kv_lora_rank,
        plain=config.qk_nope_head_dim,
        rotated=config.qk_rope_head_dim,
        value=config.v_head_dim,
    )


def _attention_scale(config: Any, latent: Latent) -> float:
    """1 / sqrt(width), sharpened for contexts stretched by YaRN (arXiv 2309.00071, 3.4; DeepSeek's `mscale_all_dim`)."""
    import math

    rope, scale = config.rope_parameters, latent.head**-0.5
    factor, sharpness = rope.get("factor") or 1.0, rope.get("mscale_all_dim") or 0.0
    if rope["rope_type"] == "default" or not sharpness or factor <= 1:
        return scale
    return float(scale * (0.1 * sharpness * math.log(factor) + 1.0) ** 2)


def check_args(args: Any, shape: ModelShape, where: str) -> None:
    """Raise VimeError listing every model flag that contradicts the checkpoint. Flags left at None follow the checkpoint."""
    wanted: dict[str, Any] = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocab,
        "norm_epsilon": shape.norm_eps,
        "rotary_base": shape.rope_theta,
        "untie_embeddings_and_output_weights": not shape.tied,
    }
    if shape.latent is None:
        wanted |= {"num_query_groups": shape.groups, "kv_channels": shape.head_dim}
    if shape.experts is not None:
        wanted |= {
            "num_experts": shape.experts.count,
            "moe_router_topk": shape.experts.top,
            "moe_ffn_hidden_size": shape.experts.ffn,
        }
    wrong = [
        f"--{name.replace('_', '-')} is {given}, the checkpoint says {value}"
        for name, value in wanted.items()
        if (given := getattr(args, name, None)) is not None and given != value
    ]
    if wrong:
        raise VimeError(
            "model flags contradict the checkpoint: " + "; ".join(wrong),
            where=where,
            hint="leave these flags out: they are read from the checkpoint",
        )


def require_supported(model_type: str, where: str) -> None:
    """Raise VimeError, naming the supported ones, for another model type."""
    if model_type not in FAMILIES:
        raise VimeError(
            f"model type {model_type!r} cannot be converted; supported: {', '.join(supported())}",
            where=where,
            hint="a new family is one entry in vime/convert/families.py",
        )
