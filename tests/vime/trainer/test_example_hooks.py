"""The worked examples of hooks that run in a trainer rank, at work, and the two hooks that make its columns."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import make_args, make_samples

from vime.errors import VimeError
from vime.trainer.batching import samples_to_train_data
from vime.trainer.trainer import Trainer

NewTrainer = Callable[..., Trainer]
HERE = "examples.hooks"


def trained(new_trainer: NewTrainer, **flags: Any) -> tuple[Trainer, dict[str, float]]:
    trainer = new_trainer("llama", global_batch_size=8, adam_eps=1e-3, **flags)
    return trainer, trainer.train(0, make_samples(4, 2))


def test_a_price_on_tokens_changes_what_is_trained_and_not_what_is_reported() -> None:
    samples = make_samples(3, 2)
    args = make_args("", custom_reward_post_process_path=f"{HERE}.rewards.cheaper_is_better")
    data = samples_to_train_data(args, samples)
    assert data["raw_reward"] == [sample.reward for sample in samples]
    for a, b in zip(data["rewards"][::2], data["rewards"][1::2], strict=True):
        assert a == pytest.approx(-b)
    gap = (samples[0].reward - samples[1].reward) - 0.01 * (samples[0].response_length - samples[1].response_length)
    assert data["rewards"][0] == pytest.approx(gap / 2)


def test_a_converter_of_ones_own_is_completed(new_trainer: NewTrainer) -> None:
    path = f"{HERE}.train_data.last_half_only"
    samples = make_samples(4, 2)
    data = samples_to_train_data(make_args("", custom_convert_samples_to_train_data_path=path), samples)
    for sample, mask, total in zip(samples, data["loss_masks"], data["rollout_mask_sums"], strict=True):
        half = sample.response_length // 2
        assert mask == [0] * half + sample.loss_mask[half:]
        assert total == sum(mask)
    assert data["rewards"] == data["raw_reward"] == [sample.reward for sample in samples]
    _, metrics = trained(new_trainer, custom_convert_samples_to_train_data_path=path)
    assert metrics["train/grad_norm"] > 0


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (lambda args, samples: {"tokens": []}, "it returned no loss_masks, response_lengths, rewards"),
        (
            lambda args, samples: {
                "tokens": [[1, 2]],
                "response_lengths": [1],
                "loss_masks": [[1], [1]],
                "rewards": [1.0],
            },
            "loss_masks has 2 entries, tokens has 1",
        ),
        (
            lambda args, samples: {
                "tokens": [[1, 2]],
                "response_lengths": [1],
                "loss_masks": [[1, 1]],
                "rewards": [1.0],
            },
            "loss_masks has 2 entries for 1 response tokens",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(hook: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import examples.hooks.train_data as module

    monkeypatch.setattr(module, "last_half_only", hook)
    args = make_args("", custom_convert_samples_to_train_data_path=f"{HERE}.train_data.last_half_only")
    with pytest.raises(VimeError, match=said):
        samples_to_train_data(args, make_samples(2, 2))


def test_rows_of_ones_own_need_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    import examples.hooks.train_data as module

    rows = {"tokens": [[1, 2, 3]], "response_lengths": [2], "loss_masks": [[1, 0]], "rewards": [0.5]}
    monkeypatch.setattr(module, "last_half_only", lambda args, samples: rows)
    args = make_args("", custom_convert_samples_to_train_data_path=f"{HERE}.train_data.last_half_only")
    data = samples_to_train_data(args, make_samples(2, 2))
    assert (data["total_lengths"], data["rollout_mask_sums"], data["sample_indices"]) == ([3], [1], [0])


def test_rewards_that_are_too_few_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import examples.hooks.rewards as module

    monkeypatch.setattr(module, "cheaper_is_better", lambda args, samples: ([1.0], [1.0]))
    args = make_args("", custom_reward_post_process_path=f"{HERE}.rewards.cheaper_is_better")
    with pytest.raises(VimeError, match="1 raw rewards and 1 rewards for 4 samples"):
        samples_to_train_data(args, make_samples(2, 2))


def test_advantages_fade_and_are_clipped(new_trainer: NewTrainer) -> None:
    from examples.hooks.train_data import clip_advantages, early_tokens_first

    data = {"rewards": [3.0], "response_lengths": [3]}
    early_tokens_first(Namespace(), data)
    torch.testing.assert_close(data["advantages"][0], torch.tensor([3.0, 2.97, 2.9403]))
    clip_advantages(Namespace(), 0, data)
    assert data["advantages"][0].tolist() == [2.0, 2.0, 2.0]
    _, metrics = trained(
        new_trainer,
        custom_advantage_function_path=f"{HERE}.train_data.early_tokens_first",
        rollout_data_postprocess_path=f"{HERE}.train_data.clip_advantages",
    )
    assert metrics["train/grad_norm"] > 0


def test_the_smoothed_likelihood_is_the_cross_entropy_of_smoothed_labels(new_trainer: NewTrainer) -> None:
    from examples.hooks.losses import smoothed_likelihood

    logits, targets = torch.randn(5, 7, dtype=torch.float64), torch.tensor([0, 3, 6, 1, 1])
    loss, _ = smoothed_likelihood(Namespace(), {"targets": targets}, logits, torch.sum)
    torch.testing.assert_close(
        loss, torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1, reduction="sum")
    )
    _, metrics = trained(
        new_trainer, loss_type="custom_loss", custom_loss_function_path=f"{HERE}.losses.smoothed_likelihood"
    )
    assert metrics["train/nll"] > 0


def test_sequence_weights_and_a_constant_length_train(new_trainer: NewTrainer) -> None:
    _, metrics = trained(
        new_trainer,
        use_tis=True,
        custom_tis_function_path=f"{HERE}.losses.sequence_weight",
        custom_pg_loss_reducer_function_path=f"{HERE}.losses.by_constant_length",
    )
    assert 0 < metrics["train/sequence_weight"] <= 2.0
    assert metrics["train/grad_norm"] > 0


def test_hooks_of_the_trainer(new_trainer: NewTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    import examples.hooks.trainer_hooks as module

    monkeypatch.delenv("VIME_EXPERIMENT", raising=False)
    module.passes.clear()
    trainer, _ = trained(
        new_trainer,
        run_id="mine",
        custom_megatron_init_path=f"{HERE}.trainer_hooks.name_the_process",
        custom_megatron_before_log_prob_hook_path=f"{HERE}.trainer_hooks.note_scoring",
        custom_megatron_before_train_step_hook_path=f"{HERE}.trainer_hooks.freeze_embedding_at_first",
    )
    import os

    assert os.environ["VIME_EXPERIMENT"] == "mine"
    assert module.passes == {"": 1}
    plain, _ = trained(new_trainer)
    frozen, free = dict(trainer.iter_hf_weights()), dict(plain.iter_hf_weights())
    start = dict(new_trainer("llama").iter_hf_weights())
    embedding = "model.embed_tokens.weight"
    assert torch.equal(frozen[embedding], start[embedding])
    assert not torch.equal(free[embedding], start[embedding])
    assert not torch.equal(frozen["model.norm.weight"], start["model.norm.weight"])


def test_a_copy_of_each_version_is_kept(tmp_path: Path) -> None:
    from examples.hooks.trainer_hooks import keep_a_copy

    for version in ("1", "2"):
        folder = tmp_path / f"weight_v{version}"
        folder.mkdir()
        (folder / "model.safetensors").write_text(version)
        keep_a_copy(Namespace(update_weight_disk_dir=str(tmp_path)), str(folder), ["http://127.0.0.1:1"])
    assert (tmp_path / "newest" / "model.safetensors").read_text() == "2"
    assert json.loads((tmp_path / "newest" / "engines.json").read_text()) == ["http://127.0.0.1:1"]
