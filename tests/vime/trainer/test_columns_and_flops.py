"""Means by count over ranks, and the work of a model against what it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_config, make_samples

from vime.convert.config import model_shape
from vime.trainer.batching import flatten
from vime.trainer.columns import column_means
from vime.trainer.flops import training_flops
from vime.trainer.trainer import Trainer


def test_values_on_the_host_and_on_a_device_are_one_column() -> None:
    """Of a step with two updates on a GPU: part was scored before them, part within the first. Seen to end a run there."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        host, device = torch.ones(2), torch.ones(3, device="cuda")
        both, alone = flatten([host, device], range(2)), flatten([device, device], range(2))
    assert (both.shape, both.device.type) == ((5,), "cpu")
    assert (alone.shape, alone.device.type) == ((6,), "cuda")


@given(cut=st.integers(0, 6), seed=st.integers(0, 99))
def test_means_do_not_depend_on_how_samples_lie_on_ranks(cut: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (6,), generator=generator).tolist()
    whole = {
        "advantages": [torch.randn(n, generator=generator) for n in lengths],
        "old_log_probs": [torch.randn(n, generator=generator) for n in lengths],
        "ref_log_probs": [torch.randn(n, generator=generator).tolist() for n in lengths],
        "loss_masks": [torch.randint(0, 2, (n,), generator=generator).tolist() for n in lengths],
        "rewards": torch.randn(6, generator=generator).tolist(),
    }
    whole["old_log_probs"][0][0] = float("nan")
    whole["loss_masks"][0][0] = 0
    kept = torch.tensor([m for mask in whole["loss_masks"] for m in mask]) != 0
    expected = {
        "rollout/advantages": torch.cat(whole["advantages"])[kept],
        "rollout/log_probs": torch.cat(whole["old_log_probs"])[kept],
        "rollout/kl": (
            torch.cat(whole["old_log_probs"]) - torch.tensor([x for one in whole["ref_log_probs"] for x in one])
        )[kept],
    }
    parts = [
        {name: column[:cut] for name, column in whole.items()},
        {name: column[cut:] for name, column in whole.items()},
    ]
    sums: list[dict[str, float]] = []
    for part in parts:
        column_means(part, lambda own: sums.append(own) or own)
    added = {name: sum(one.get(name, 0.0) for one in sums) for one in sums for name in one}
    found = column_means(parts[0], lambda own: added)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values.mean().item() if len(values) else 0.0, abs=1e-5)
    assert found["rollout/rewards"] == pytest.approx(sum(whole["rewards"]) / 6, abs=1e-6)
    assert "rollout/values" not in found


@pytest.mark.parametrize("family", ["llama", "qwen3", "deepseek_v3", "qwen3_moe", "glm4_moe"])
def test_work_is_twice_the_weights_that_a_token_meets(family: str) -> None:
    """Counted from the modules of Hugging Face's model: every matrix a token is multiplied with, of experts as many as it has."""
    from transformers import AutoModelForCausalLM

    config = make_config(family, tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_config(config)
    shape = model_shape(config)
    weights = 0.0
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or "embed_tokens" in name:
            continue
        share = shape.experts.top / shape.experts.count if ".experts." in name and shape.experts else 1.0
        weights += parameter.numel() * share
    one, two = training_flops(shape, [1]), training_flops(shape, [1, 1])
    assert two == pytest.approx(2 * one)
    width = shape.latent.head + shape.latent.value if shape.latent else 2 * shape.head_dim
    attention = 3 * 2 * shape.layers * shape.heads * width
    assert one - attention == pytest.approx(6 * weights)
    assert training_flops(shape, [8]) - 8 * (one - attention) == pytest.approx(attention * 36)


def test_the_trainer_reports_them(new_trainer: Any, checkpoints: dict[str, Path]) -> None:
    trainer: Trainer = new_trainer("llama", use_kl_loss=True, kl_loss_coef=0.1, ref_load=str(checkpoints["llama"]))
    metrics = trainer.train(0, make_samples(4, 2))
    assert metrics["perf/actor_train_tflops"] > 0
    assert {
        f"rollout/{n}" for n in ("advantages", "rewards", "log_probs", "ref_log_probs", "rollout_log_probs", "kl")
    } <= metrics.keys()
    assert metrics["rollout/kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["rollout/log_probs"] == pytest.approx(metrics["rollout/ref_log_probs"])
