"""What a Hugging Face configuration means for a Megatron model, and whether the flags agree with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.convert.families import FAMILIES, supported
from vime.errors import VimeError

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class ModelShape:
    """Sizes and switches of a decoder, in Megatron's terms. `groups` are key/value heads."""

    model_type: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    head_dim: int
    vocab: int
    norm_eps: float
    tied: bool
    max_positions: int
    rope_theta: float
    rope_type: str

    def padded_vocab(self, tensor_ranks: int) -> int:
        """Rows of the embedding over all ranks. The rows past `vocab` are never scored and never exported."""
        return -(-self.vocab // tensor_ranks) * tensor_ranks


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
    _require_supported(model_type, str(path))

    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(directory), trust_remote_code=False)


def model_shape(config: Any, where: str = "config.json") -> ModelShape:
    """Sizes of `config`. Raises VimeError naming the first setting that the trainer would compute wrongly."""
    _require_supported(config.model_type, where)
    rope = config.rope_parameters
    unsupported = {
        "hidden_act": (config.hidden_act, config.hidden_act not in ("silu", "swish")),
        "attention_bias": (getattr(config, "attention_bias", False), bool(getattr(config, "attention_bias", False))),
        "mlp_bias": (getattr(config, "mlp_bias", False), bool(getattr(config, "mlp_bias", False))),
        "use_sliding_window": (True, bool(getattr(config, "use_sliding_window", False))),
        "attention_dropout": (config.attention_dropout, bool(config.attention_dropout)),
        "rope_type": (rope["rope_type"], rope["rope_type"] not in _ROPE_TYPES),
        "partial_rotary_factor": (
            rope.get("partial_rotary_factor"),
            rope.get("partial_rotary_factor") not in (None, 1.0),
        ),
    }
    for name, (value, bad) in unsupported.items():
        if bad:
            raise VimeError(f"{config.model_type} with {name}={value!r} is not supported by the trainer", where=where)
    return ModelShape(
        model_type=config.model_type,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads or config.num_attention_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab=config.vocab_size,
        norm_eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        max_positions=config.max_position_embeddings,
        rope_theta=float(rope["rope_theta"]),
        rope_type=rope["rope_type"],
    )


def check_args(args: Any, shape: ModelShape, where: str) -> None:
    """Raise VimeError listing every model flag that contradicts the checkpoint. Flags left at None follow the checkpoint."""
    wanted = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.groups,
        "kv_channels": shape.head_dim,
        "vocab_size": shape.vocab,
        "norm_epsilon": shape.norm_eps,
        "rotary_base": shape.rope_theta,
        "untie_embeddings_and_output_weights": not shape.tied,
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


def _require_supported(model_type: str, where: str) -> None:
    if model_type not in FAMILIES:
        raise VimeError(
            f"model type {model_type!r} cannot be converted; supported: {', '.join(supported())}",
            where=where,
            hint="a new family is one table in vime/convert/families.py",
        )
