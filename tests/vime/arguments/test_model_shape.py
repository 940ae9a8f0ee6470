"""The model's shape where no checkpoint is at hand, and what is counted from it."""

from __future__ import annotations

from argparse import Namespace

import pytest

from vime.arguments import catalogue
from vime.arguments.model_shape import cache_width, complete_shape, parameter_count, shape_flags
from vime.arguments.parse import parse_args
from vime.arguments.plan import resolve_plan
from vime.data.preflight import preflight
from vime.errors import Problems

_V3 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128,
    "num_key_value_heads": 128, "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_theta": 10000,
}  # fmt: skip


@pytest.mark.parametrize("pattern", [None, "[0]*3+[1]*58", str([0] * 3 + [1] * 58)])
def test_parameters_of_a_latent_mixture_are_the_published_ones(pattern: str | None) -> None:
    """DeepSeek-V3: 671 billion without its prediction layer (arXiv 2412.19437, section 4.2)."""
    names = (*catalogue.by_name(), "hf_config")
    args = Namespace(**(dict.fromkeys(names) | shape_flags(_V3) | {"moe_layer_freq": pattern, "hf_config": _V3}))
    complete_shape(args)
    assert round(parameter_count(args) / 1e9) == 671
    assert cache_width(args) == 576  # the same report: 512 compressed and 64 rotated


def test_files_of_another_machine_are_assumed_in_a_dry_run_only() -> None:
    elsewhere = [
        *("--hf-checkpoint", "/elsewhere/model", "--ref-load", "/elsewhere/ref", "--prompt-data", "/elsewhere/p.jsonl", "--rm-type", "random"),
        *("--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "8", "--num-rollout", "1"),
        *("--use-kl-loss", "--device", "cuda", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--vocab-size", "99"),
        *("--eval-prompt-data", "dev", "/elsewhere/dev.jsonl", "--eval-interval", "5"),
    ]  # fmt: skip
    args = parse_args([*elsewhere, "--dry-run", "--assume-files"])
    assert preflight(args) == 0
    memory = resolve_plan(args).memory
    assert memory is not None
    assert memory.parameters > 0
    for wrong in (["--dry-run"], ["--assume-files"]):
        with pytest.raises(Problems):
            parse_args([*elsewhere, *wrong])
