"""The Megatron model computes what the Hugging Face model of the same weights computes, packed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from safetensors.torch import load_file
from tiny_models import VOCAB, make_args, make_samples
from transformers import AutoModelForCausalLM

from vime.convert import hf
from vime.convert.config import model_shape, read_hf_config
from vime.errors import VimeError
from vime.trainer.architecture import transformer_config
from vime.trainer.attention import pack
from vime.trainer.model import build_model
from vime.trainer.parallel import Layout
from vime.trainer.trainer import Trainer

CPU = torch.device("cpu")
LENGTHS = [5, 17, 30, 3, 3, 16, 1]


def logits_of_both(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    trainer = Trainer(make_args(path))
    trainer.init()
    reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(5)
    sequences = [torch.randint(3, VOCAB, (n,), generator=generator) for n in LENGTHS]
    packed = pack(LENGTHS, trainer.model.rotary, torch.float32, CPU)
    with torch.no_grad():
        own = trainer.model.logits(trainer.model.hidden_states(torch.cat(sequences), packed))
        expected = torch.cat([reference(s[None]).logits[0] for s in sequences])
    return own, expected


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_logits_equal_hugging_face(checkpoints: dict[str, Path], family: str) -> None:
    own, expected = logits_of_both(checkpoints[family])
    assert (own - expected).abs().max() <= 1e-5


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 500000.0,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0},
    ],
    ids=lambda s: s["rope_type"],
)
def test_scaled_rotary_embeddings_equal_hugging_face(tmp_path: Path, scaling: dict[str, float]) -> None:
    path = tiny_models.make_checkpoint(tmp_path / "m", "llama", rope_parameters=scaling)
    own, expected = logits_of_both(path)
    assert (own - expected).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("deepseek_v3", {"q_lora_rank": None}),
        ("deepseek_v3", {"rope_interleave": False, "n_group": 1, "topk_group": 1}),
        (
            "deepseek_v3",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "rope_theta": 10000.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 0.7,
                }
            },
        ),
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("qwen3_moe", {"mlp_only_layers": [0]}),
        ("glm4_moe", {"use_qk_norm": False, "attention_bias": False, "n_shared_experts": 2}),
        ("glm4", {"attention_bias": False, "tied": True}),
    ],
    ids=str,
)
def test_variants_of_a_family_equal_hugging_face(tmp_path: Path, family: str, setting: dict[str, Any]) -> None:
    own, expected = logits_of_both(tiny_models.make_checkpoint(tmp_path / "m", family, **setting))
    assert (own - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_of_the_tempered_distribution(checkpoints: dict[str, Path], temperature: float) -> None:
    """huggingface/trl#4159: the trainer must divide by the temperature that the engine sampled with."""
    path = checkpoints["qwen3"]
    trainer = Trainer(make_args(path, rollout_temperature=temperature))
    trainer.init()
    reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    samples = make_samples(4)
    for sample, own in zip(samples, trainer.log_probs(samples), strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([sample.tokens])).logits[0].double() / temperature
        response = torch.tensor(sample.tokens[sample.prompt_length :])
        expected = logits.log_softmax(-1)[sample.prompt_length - 1 : -1].gather(-1, response[:, None])[:, 0]
        assert (own - expected).abs().max() <= 1e-5


def test_packed_equals_one_by_one(checkpoints: dict[str, Path]) -> None:
    trainer = Trainer(make_args(checkpoints["llama"]))
    trainer.init()
    samples = make_samples(6, longest=20)
    together = trainer.log_probs(samples)
    for sample, packed in zip(samples, together, strict=True):
        (alone,) = trainer.log_probs([sample])
        assert (alone - packed).abs().max() <= 1e-5


def test_gradients_of_chunked_scoring_equal_whole(checkpoints: dict[str, Path]) -> None:
    gradients = []
    for chunk in (-1, 7):
        trainer = Trainer(make_args(checkpoints["qwen2"], log_probs_chunk_size=chunk, lr=0.0, min_lr=0.0))
        trainer.init()
        trainer.train(0, make_samples(4, 2))
        gradients.append({n: p.main_grad.clone() for n, p in trainer.model.named_parameters()})
    for name, whole in gradients[0].items():
        assert (whole - gradients[1][name]).abs().max() <= 1e-6, name


def test_heads_that_ranks_do_not_divide_are_refused(checkpoints: dict[str, Path]) -> None:
    shape = model_shape(read_hf_config(checkpoints["llama"]))
    with pytest.raises(VimeError, match="2 key/value heads cannot be cut over --tensor-model-parallel-size 4"):
        transformer_config(shape, make_args(checkpoints["llama"]), CPU, Layout(4, 4))


@pytest.mark.parametrize(
    ("family", "layout", "said"),
    [
        ("qwen3_moe", Layout(2, 2), "need --sequence-parallel"),
        ("qwen3_moe", Layout(2, 2, expert_tensor=1, sequence=True), "needs --expert-model-parallel-size over 1"),
        (
            "qwen3_moe",
            Layout(4, 2, 2, expert_tensor=2, sequence=True),
            "--sequence-parallel with --context-parallel-size",
        ),
        ("qwen3_moe", Layout(3, expert=3), "8 experts cannot be cut over --expert-model-parallel-size 3"),
        ("llama", Layout(2, expert=2), "llama has no experts"),
    ],
)
def test_cuts_that_would_train_wrongly_are_refused(
    checkpoints: dict[str, Path], family: str, layout: Layout, said: str
) -> None:
    with pytest.raises(VimeError, match=said):
        transformer_config(
            model_shape(read_hf_config(checkpoints[family])), make_args(checkpoints[family]), CPU, layout
        )


def test_export_gives_back_every_bit(checkpoints: dict[str, Path]) -> None:
    for path in checkpoints.values():
        args = make_args(path)
        trainer = Trainer(args)
        trainer.init()
        config = read_hf_config(path)
        twin = build_model(model_shape(config), config, args, CPU, Layout(1))
        hf.load_hf(twin, path, model_shape(config))
        exported = dict(hf.iter_hf_weights(twin, model_shape(config)))
        original = load_file(path / "model.safetensors")
        assert set(exported) == set(original)
        assert all(torch.equal(exported[name], original[name]) for name in exported)
