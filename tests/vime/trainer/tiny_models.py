"""Tiny random Hugging Face checkpoints of each supported family, and samples for them. No hub, no tokenizer."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from vime.arguments import catalogue
from vime.sample import Sample, Status

VOCAB = 97  # odd on purpose: tensor parallelism must pad it


_MOE: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_SIGMOID_MOE: dict[str, Any] = _MOE | {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
#: What a family's configuration has beside the common sizes. DeepSeek's chooses among groups of experts.
SETTINGS: dict[str, dict[str, Any]] = {
    "deepseek_v3": _SIGMOID_MOE
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 24,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 4,
    },
    "glm4": {"head_dim": 32},
    "glm4_moe": _SIGMOID_MOE | {"head_dim": 32, "use_qk_norm": True, "attention_bias": True},
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": _MOE | {"head_dim": 32, "num_experts": 8, "norm_topk_prob": True},
}
FAMILIES = tuple(SETTINGS)


def make_config(family: str, **over: Any) -> Any:
    """The transformers configuration of a tiny model."""
    from transformers import AutoConfig

    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return AutoConfig.for_model(family, **(settings | SETTINGS[family] | over))


def make_checkpoint(
    path: Path, family: str, *, seed: int = 0, tied: bool = False, layers: int = 2, **extra: Any
) -> Path:
    """Write a random model of `family`; biases and norms are moved off their trivial initial values."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = make_config(family, num_hidden_layers=layers, tie_word_embeddings=tied, **extra)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("bias"):
                parameter.normal_(0, 0.1)
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            if name.endswith("gate.weight"):  # routers begin at zero
                parameter.normal_(0, 0.3)
    model.save_pretrained(path)
    return path


def make_args(checkpoint: Path | str, **over: Any) -> SimpleNamespace:
    """Every flag at its default, and what these tests settle on."""
    defaults = {option.name: option.default for option in catalogue.by_name().values()}
    settled: dict[str, Any] = {
        "hf_checkpoint": str(checkpoint),
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 2,
        "global_batch_size": 8,
        "num_rollout": 8,
        "micro_batch_size": 4,
        "lr": 1e-3,
        "lr_decay_style": "constant",
        "weight_decay": 0.0,
        "adam_beta2": 0.95,
    }
    return SimpleNamespace(**(defaults | settled | over))


def make_samples(groups: int, siblings: int = 2, *, seed: int = 0, longest: int = 12, first: int = 0) -> list[Sample]:
    """`groups` prompts with `siblings` answers each: random ids, rewards and engine log-probabilities."""
    rng = random.Random(seed)
    samples = []
    for group in range(groups):
        prompt = [rng.randrange(3, VOCAB) for _ in range(rng.randint(2, 6))]
        for _ in range(siblings):
            response = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, longest))]
            index = first + len(samples)
            samples.append(
                Sample(
                    index=index,
                    group_index=group,
                    rollout_id=index,
                    tokens=prompt + response,
                    response_length=len(response),
                    loss_mask=[int(rng.random() < 0.9) for _ in response],
                    rollout_log_probs=[-rng.random() * 3 for _ in response],
                    reward=rng.random(),
                    status=Status.COMPLETED,
                )
            )
    return samples


def add_supports(samples: list[Sample], *, seed: int = 0) -> list[Sample]:
    """Give each response token a random support that holds it, with log-probabilities that sum to 1 on it."""
    generator = torch.Generator().manual_seed(seed)
    for sample in samples:
        ids, offsets, values, own = [], [0], [], []
        for token in sample.tokens[sample.prompt_length :]:
            row = [token, *(i for i in torch.randperm(VOCAB, generator=generator)[:5].tolist() if i != token)]
            log_probs = torch.randn(len(row), generator=generator).log_softmax(0).tolist()
            ids, values, own = ids + row, values + log_probs, [*own, log_probs[0]]
            offsets.append(len(ids))
        sample.rollout_top_p_token_ids, sample.rollout_top_p_offsets = ids, offsets
        sample.rollout_top_p_log_probs, sample.rollout_log_probs = values, own
    return samples
