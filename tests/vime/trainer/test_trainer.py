"""One rank of the trainer as a whole: learning, refusing, resuming."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import make_samples
from transformers import AutoModelForCausalLM

from vime.errors import VimeError
from vime.sample import Sample
from vime.trainer import checkpoint
from vime.trainer.optimizer import inner_optimizers
from vime.trainer.trainer import Trainer

NewTrainer = Callable[..., Trainer]


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.iter_hf_weights()}


def as_sampled(trainer: Trainer, samples: list[Sample], error: float = 0.0) -> list[Sample]:
    """Give samples the log-probabilities that an engine with these weights would report, off by `error`."""
    for sample, log_probs in zip(samples, trainer.log_probs(samples), strict=True):
        sample.rollout_log_probs = (log_probs + error).tolist()
    return samples


def hf_log_probs(model: Any, sample: Sample) -> torch.Tensor:
    logits = model(torch.tensor([sample.tokens])).logits[0, sample.prompt_length - 1 : -1]
    response = torch.tensor(sample.tokens[sample.prompt_length :])
    return logits.log_softmax(-1).gather(-1, response[:, None])[:, 0]


@pytest.mark.parametrize("distributed_optimizer", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_five_supervised_steps_equal_hugging_face_with_adamw(
    checkpoints: dict[str, Path], new_trainer: NewTrainer, family: str, distributed_optimizer: bool
) -> None:
    trainer = new_trainer(family, loss_type="sft_loss", clip_grad=0.5, use_distributed_optimizer=distributed_optimizer)
    model = AutoModelForCausalLM.from_pretrained(checkpoints[family], dtype=torch.float32)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for step in range(5):
        samples = make_samples(4, 2, seed=step)
        metrics = trainer.train(step, samples)
        loss = torch.zeros(())
        for sample in samples:
            mask = torch.tensor(sample.loss_mask, dtype=torch.float32)
            loss = loss - (hf_log_probs(model, sample) * mask).sum() / mask.sum().clamp_min(1) / len(samples)
        adamw.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adamw.step()
        assert metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert metrics["train/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_two_policy_steps_equal_a_plain_reimplementation(checkpoints: dict[str, Path], new_trainer: NewTrainer) -> None:
    """Old log-probabilities are those before the rollout's first step, in its second step too."""
    trainer = new_trainer("qwen3", global_batch_size=4, micro_batch_size=2, clip_grad=0.0, adam_eps=1e-3)
    model = AutoModelForCausalLM.from_pretrained(checkpoints["qwen3"], dtype=torch.float32)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.0)
    samples = make_samples(4, 2)
    rewards = torch.tensor([s.reward for s in samples]).view(4, 2)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).flatten()
    with torch.no_grad():
        old = [hf_log_probs(model, s) for s in samples]
    losses = []
    for half in (range(4), range(4, 8)):
        loss = torch.zeros(())
        for i in half:
            ratio = (hf_log_probs(model, samples[i]) - old[i]).exp()
            token = torch.maximum(-ratio * advantages[i], -ratio.clamp(0.8, 1.2) * advantages[i])
            mask = torch.tensor(samples[i].loss_mask, dtype=torch.float32)
            loss = loss + (token * mask).sum() / mask.sum().clamp_min(1) / 4
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        losses.append(loss.item())
    metrics = trainer.train(0, samples)
    assert metrics["train/loss"] == pytest.approx(sum(losses) / 2, abs=2e-6)
    state = model.state_dict()
    for name, tensor in trainer.iter_hf_weights():
        assert (tensor - state[name]).abs().max() <= 1e-6, name  # a large epsilon: no sign of a tiny gradient decides


@pytest.mark.parametrize(
    "flags",
    [
        {"recompute_granularity": "selective"},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    ],
    ids=lambda flags: flags["recompute_granularity"],
)
def test_recomputation_changes_nothing(new_trainer: NewTrainer, flags: dict[str, Any]) -> None:
    plain, recomputing = new_trainer("qwen3"), new_trainer("qwen3", **flags)
    for trainer in (plain, recomputing):
        trainer.train(0, make_samples(4, 2))
    for (name, a), (_, b) in zip(plain.iter_hf_weights(), recomputing.iter_hf_weights(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("distributed_optimizer", [False, True])
def test_bfloat16_keeps_float32_main_weights(
    new_trainer: NewTrainer, tmp_path: Path, distributed_optimizer: bool
) -> None:
    """Updates far below a bfloat16's resolution add up, also across a resume."""
    flags = {"bf16": True, "use_distributed_optimizer": distributed_optimizer, "lr": 2e-6, "save": str(tmp_path)}
    straight = new_trainer("qwen3", **flags)
    for i in range(4):
        straight.train(i, make_samples(4, 2, seed=i))
        if i == 1:
            straight.save(1)
    resumed = new_trainer("qwen3", **flags, load=str(tmp_path))
    for i in range(2, 4):
        resumed.train(i, make_samples(4, 2, seed=i))
    main = [
        [p for inner in inner_optimizers(t.actor.optimizer) for group in inner.param_groups for p in group["params"]]
        for t in (straight, resumed)
    ]
    assert all(p.dtype == torch.float32 for p in main[0])
    assert all(torch.equal(a, b) for a, b in zip(*main, strict=True))
    assert all(
        torch.equal(a, b) for (_, a), (_, b) in zip(straight.iter_hf_weights(), resumed.iter_hf_weights(), strict=True)
    )


def test_reference_equal_to_policy_has_no_divergence_and_survives_training(
    checkpoints: dict[str, Path], new_trainer: NewTrainer
) -> None:
    trainer = new_trainer(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k3", ref_load=str(checkpoints["qwen3"]))
    first = trainer.train(0, make_samples(4, 2))
    assert first["train/kl_loss"] == 0.0
    assert trainer.train(1, make_samples(4, 2))["train/kl_loss"] > 0
    kept = weights_of(trainer)
    with trainer.weights.as_model("ref"):
        original = AutoModelForCausalLM.from_pretrained(checkpoints["qwen3"], dtype=torch.float32).state_dict()
        assert all(torch.equal(t, original[n]) for n, t in trainer.iter_hf_weights())
    assert all(torch.equal(t, kept[n]) for n, t in trainer.iter_hf_weights())


def test_a_kl_penalty_without_reference_says_so(new_trainer: NewTrainer) -> None:
    with pytest.raises(VimeError) as caught:
        new_trainer(use_kl_loss=True, kl_loss_coef=0.1)
    assert caught.value.hint == "give --ref-load"


# -- parity ----------------------------------------------------------------------------------------------------------


def test_parity_of_equal_weights(new_trainer: NewTrainer) -> None:
    trainer = new_trainer(parity_threshold=1e-5)
    samples = as_sampled(trainer, make_samples(4, 2))
    assert trainer.parity(samples).mean <= 1e-6
    metrics = trainer.train(0, samples)
    assert metrics["train/train_rollout_logprob_abs_diff"] <= 1e-6
    assert trainer.parity(samples).mean > 1e-4  # it has learnt since


@pytest.mark.parametrize("steps", [1, 2])
def test_training_is_refused_when_the_engine_has_other_weights(new_trainer: NewTrainer, steps: int) -> None:
    trainer = new_trainer(parity_threshold=1e-3, global_batch_size=8 // steps)
    samples = as_sampled(trainer, make_samples(4, 2), error=0.01)
    before = weights_of(trainer)
    with pytest.raises(VimeError, match=r"refusing to train: .* mean 1.00e-02.* of sample") as caught:
        trainer.train(3, samples)
    assert "rollout 3" in str(caught.value)
    assert "agree in every layer" in (caught.value.hint or "")  # the error is on the engine's side
    assert all(torch.equal(t, before[n]) for n, t in trainer.iter_hf_weights())


def test_the_first_layer_that_differs_is_named(new_trainer: NewTrainer) -> None:
    trainer = new_trainer()
    samples = make_samples(3, 2)
    assert trainer.first_divergent_layer(samples).first_divergent is None
    stale = [(n, t + 0.05 if n == "model.layers.1.mlp.up_proj.weight" else t) for n, t in trainer.iter_hf_weights()]
    report = trainer.first_divergent_layer(samples, stale)
    assert report.first_divergent == "layer 1"
    assert "layer 1" in str(report)


# -- refusals --------------------------------------------------------------------------------------------------------


def test_non_finite_loss_names_the_samples_and_leaves_the_weights(new_trainer: NewTrainer) -> None:
    """THUDM/slime#795: "Unexpected result nan" without a word on where."""
    trainer = new_trainer(use_tis=True)
    samples = make_samples(4, 2)
    samples[5].loss_mask = [1] * samples[5].response_length
    samples[5].rollout_log_probs[0] = float("nan")
    before = weights_of(trainer)
    with pytest.raises(VimeError, match=r"not finite.*\[5\]"):
        trainer.train(0, samples)
    assert all(torch.equal(t, before[n]) for n, t in trainer.iter_hf_weights())


def test_a_wholly_masked_step_is_skipped(new_trainer: NewTrainer, caplog: pytest.LogCaptureFixture) -> None:
    """huggingface/trl#6439: all answers truncated and masked divided by zero."""
    trainer = new_trainer()
    samples = make_samples(4, 2)
    for sample in samples:
        sample.remove_sample = True
    before = weights_of(trainer)
    metrics = trainer.train(0, samples)
    assert metrics["train/skipped_steps"] == 1.0
    assert "every token is masked" in caplog.text
    assert all(torch.equal(t, before[n]) for n, t in trainer.iter_hf_weights())


def test_flags_that_contradict_the_checkpoint_are_listed(new_trainer: NewTrainer) -> None:
    """THUDM/slime#1059: a wrong model script trained silently."""
    with pytest.raises(VimeError, match="--num-layers is 3, the checkpoint says 2; --rotary-base is 1000000"):
        new_trainer("llama", num_layers=3, rotary_base=1000000)


def test_a_penalty_that_would_do_nothing_is_refused(new_trainer: NewTrainer) -> None:
    with pytest.raises(VimeError, match="--kl-coef"):
        new_trainer(kl_coef=0.1)


@pytest.mark.parametrize("flag", ["use_routing_replay", "use_rollout_routing_replay"])
def test_routing_replay_of_a_dense_model_is_refused(new_trainer: NewTrainer, flag: str) -> None:
    with pytest.raises(VimeError, match="routing replay needs a model with experts, not qwen3"):
        new_trainer(**{flag: True})


@pytest.mark.parametrize(
    ("flags", "trained"),
    [
        ({"only_train_params_name_list": [r"layers\.1\."]}, "layers.1."),
        ({"freeze_params_name_list": ["embedding", "output_layer", "layernorm", r"layers\.0\."]}, "layers.1."),
    ],
)
def test_frozen_weights_do_not_move(new_trainer: NewTrainer, flags: dict[str, Any], trained: str) -> None:
    trainer = new_trainer("qwen3", **flags)
    before = weights_of(trainer)
    trainer.train(0, make_samples(4, 2))
    moved = {n for n, t in trainer.iter_hf_weights() if not torch.equal(t, before[n])}
    assert moved
    assert all(trained in name for name in moved)
    with pytest.raises(VimeError, match="'lyers' matches no parameter"):
        new_trainer(freeze_params_name_list=["lyers"])


# -- schedule --------------------------------------------------------------------------------------------------------


def test_learning_rate_warms_up_and_decays_in_rollouts(new_trainer: NewTrainer) -> None:
    trainer = new_trainer(
        lr=1.0,
        min_lr=0.0,
        lr_warmup_iters=2,
        lr_decay_style="linear",
        num_rollout=6,
        global_batch_size=4,
        clip_grad=1e-9,
    )
    seen = []
    for _ in range(12):
        trainer.actor.scheduler.step(1)
        seen.append(trainer.actor.optimizer.param_groups[0]["lr"])
    assert seen[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert seen[4:] == pytest.approx([1 - k / 9 for k in range(1, 9)])


# -- resume ----------------------------------------------------------------------------------------------------------

TWO_STEPS: dict[str, Any] = {
    "global_batch_size": 4,
    "lr_warmup_iters": 3,
    "lr_decay_style": "cosine",
    "num_rollout": 6,
    "weight_decay": 0.1,
}


@pytest.mark.parametrize("distributed_optimizer", [False, True])
def test_resume_equals_never_having_stopped_bit_for_bit(
    new_trainer: NewTrainer, tmp_path: Path, distributed_optimizer: bool
) -> None:
    flags = TWO_STEPS | {"use_distributed_optimizer": distributed_optimizer}
    straight = new_trainer(**flags)
    metrics = [straight.train(i, make_samples(4, 2, seed=i)) for i in range(4)]

    first = new_trainer(**flags, save=str(tmp_path))
    for i in range(2):
        first.train(i, make_samples(4, 2, seed=i))
    drawn = torch.randint(0, 1 << 30, (4,))
    first.save(1, blob={"cursor": [3, 1], "epoch": 0})
    expected_draw = torch.randint(0, 1 << 30, (4,))
    torch.manual_seed(99)

    second = new_trainer(**flags, save=str(tmp_path), load=str(tmp_path))
    assert second.started_at == 2
    assert second.restored == {"cursor": [3, 1], "epoch": 0}
    assert torch.equal(torch.randint(0, 1 << 30, (4,)), expected_draw)
    assert not torch.equal(drawn, expected_draw)
    for i in range(2, 4):
        resumed = second.train(i, make_samples(4, 2, seed=i))
        same = {k: v for k, v in resumed.items() if not k.startswith("perf/")}
        assert same == {k: v for k, v in metrics[i].items() if not k.startswith("perf/")}
    for (name, a), (_, b) in zip(straight.iter_hf_weights(), second.iter_hf_weights(), strict=True):
        assert torch.equal(a, b), name


def test_resume_without_a_checkpoint_starts_at_zero_and_says_so(
    new_trainer: NewTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """THUDM/slime#1558: a run silently started over."""
    trainer = new_trainer(load=str(tmp_path / "nothing"))
    assert trainer.started_at == 0
    assert "no complete checkpoint" in caplog.text


@pytest.mark.parametrize("damage", ["truncate", "unmark", "no manifest", "staging"])
def test_half_a_checkpoint_is_passed_over_and_named(
    new_trainer: NewTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """PrimeIntellect-ai/prime-rl#1712: restart while the newest checkpoint was still being written."""
    trainer = new_trainer(save=str(tmp_path))
    trainer.save(0, blob="first")
    trainer.save(1, blob="second")
    newest = tmp_path / "iter_0000001"
    match damage:
        case "truncate":
            file = newest / "model_tp00.pt"
            file.write_bytes(file.read_bytes()[:-100])
        case "unmark":
            (tmp_path / checkpoint.MARKER).write_text("0")
        case "no manifest":
            (newest / checkpoint.MANIFEST).unlink()
        case "staging":
            newest.rename(tmp_path / "iter_0000001.incomplete")
    with caplog.at_level(logging.WARNING):
        resumed = new_trainer(load=str(tmp_path))
    assert resumed.started_at == 1
    assert resumed.restored == "first"
    assert "iter_0000001" in caplog.text


def test_a_flipped_byte_is_found(new_trainer: NewTrainer, tmp_path: Path) -> None:
    new_trainer(save=str(tmp_path)).save(0)
    file = tmp_path / "iter_0000000" / "model_tp00.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(VimeError, match=r"model_tp00\.pt is not what was saved"):
        new_trainer(load=str(tmp_path))


def test_optimizer_state_can_be_left_out(
    new_trainer: NewTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = new_trainer(save=str(tmp_path), no_save_optim=True)
    trainer.train(0, make_samples(4, 2))
    trainer.save(0)
    resumed = new_trainer(load=str(tmp_path))
    assert resumed.started_at == 1
    assert "starts anew" in caplog.text
    assert all(
        torch.equal(a, b) for (_, a), (_, b) in zip(trainer.iter_hf_weights(), resumed.iter_hf_weights(), strict=True)
    )


def test_files_are_written_beside_the_training_that_follows(new_trainer: NewTrainer, tmp_path: Path) -> None:
    """--async-save: what counts is a copy of the moment; the next save and the last rollout wait for it."""
    trainer = new_trainer(save=str(tmp_path), async_save=True, num_rollout=3)
    marker, kept = tmp_path / checkpoint.MARKER, []
    for rollout, complete in enumerate((None, "0", "2")):
        trainer.train(rollout, make_samples(4, 2, seed=rollout))
        trainer.save(rollout, blob=rollout)
        kept.append({name: tensor.clone() for name, tensor in trainer.iter_hf_weights()})
        assert (marker.read_text() if marker.exists() else None) == complete
    for rollout in range(3):
        resumed = new_trainer(load=str(tmp_path), ckpt_step=rollout)
        assert resumed.restored == rollout
        assert all(torch.equal(tensor, kept[rollout][name]) for name, tensor in resumed.iter_hf_weights())


@pytest.mark.parametrize(("flag", "kept"), [("reset_optimizer_states", True), ("use_stateless_adam", False)])
def test_every_rollout_begins_with_a_fresh_optimizer(new_trainer: NewTrainer, flag: str, kept: bool) -> None:
    trainer = new_trainer(**TWO_STEPS, **{flag: True})
    for rollout in range(2):
        trainer.train(rollout, make_samples(4, 2, seed=rollout))
    states = [state for inner in inner_optimizers(trainer.actor.optimizer) for state in inner.state.values()]
    assert bool(states) is kept
    assert {int(state["step"]) for state in states} <= {2}  # two steps a rollout, not four


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"use_precision_aware_optimizer": True}, "Transformer Engine"),
        ({"optimizer_cpu_offload": True, "device": "cuda"}, "--optimizer-cpu-offload is not supported on a GPU"),
        ({"moe_aux_loss_coeff": 0.01}, "--moe-aux-loss-coeff 0.01 is not supported"),
        ({"pipeline_model_parallel_size": 2}, "--pipeline-model-parallel-size 2 does not divide the 1 trainer ranks"),
        ({"expert_model_parallel_size": 2}, "does not divide the 1 trainer ranks"),
    ],
)
def test_what_the_trainer_does_not_do_is_said_in_a_line(
    new_trainer: NewTrainer, flags: dict[str, Any], said: str
) -> None:
    with pytest.raises(VimeError, match=said):
        new_trainer(**flags)


def test_a_checkpoint_of_a_step_can_be_chosen(new_trainer: NewTrainer, tmp_path: Path) -> None:
    trainer = new_trainer(save=str(tmp_path))
    for step in range(3):
        trainer.save(step, blob=step)
    assert new_trainer(load=str(tmp_path), ckpt_step=1).restored == 1
    with pytest.raises(VimeError, match="--ckpt-step 7: there is no such checkpoint"):
        new_trainer(load=str(tmp_path), ckpt_step=7)


def test_saving_the_same_step_again_replaces_it(new_trainer: NewTrainer, tmp_path: Path) -> None:
    trainer = new_trainer(save=str(tmp_path))
    trainer.save(0, blob="old")
    trainer.save(0, blob="new")
    assert new_trainer(load=str(tmp_path)).restored == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["iter_0000000", checkpoint.MARKER]


def test_exported_directory_is_a_hugging_face_checkpoint(
    new_trainer: NewTrainer, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    trainer = new_trainer("qwen2")
    trainer.train(0, make_samples(4, 2))
    trainer.save_hf(tmp_path / "out")
    samples = make_samples(3, 2)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    for sample, own in zip(samples, trainer.log_probs(samples), strict=True):
        with torch.no_grad():
            assert (hf_log_probs(model, sample) - own).abs().max() <= 1e-5


def test_what_was_trained_is_kept_for_looking_at(new_trainer: NewTrainer, tmp_path: Path) -> None:
    trainer = new_trainer("qwen3", save_debug_train_data=str(tmp_path / "dump" / "{rollout_id}.pt"))
    samples = as_sampled(trainer, make_samples(4, 2, seed=3))
    trainer.train(7, samples)
    found = torch.load(tmp_path / "dump" / "7.pt", weights_only=True)
    assert found["rollout_id"] == 7
    columns = found["columns"]
    assert columns["tokens"] == [sample.tokens for sample in samples]
    assert columns["raw_reward"] == [sample.reward for sample in samples]
    # The weights had not moved when they sampled, so the old log-probabilities are the engine's.
    for old, sample in zip(columns["old_log_probs"], samples, strict=True):
        assert old.tolist() == pytest.approx(sample.rollout_log_probs, abs=1e-5)
    assert [len(one) for one in columns["advantages"]] == columns["response_lengths"]


def test_learning_raises_the_rewarded_answers(new_trainer: NewTrainer) -> None:
    trainer = new_trainer("qwen2", lr=3e-3)
    samples = make_samples(4, 2)
    for k, sample in enumerate(samples):
        sample.reward, sample.loss_mask = float(k % 2), [1] * sample.response_length
    before = [x.mean().item() for x in trainer.log_probs(samples)]
    for step in range(5):
        assert math.isfinite(trainer.train(step, samples)["train/loss"])
    after = [x.mean().item() for x in trainer.log_probs(samples)]
    gain = [b - a for a, b in zip(before, after, strict=True)]
    assert all(good > bad for bad, good in zip(gain[::2], gain[1::2], strict=True))
