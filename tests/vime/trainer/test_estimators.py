"""Advantages of each estimator against plain Python, and the trainer with a critic, teacher, reference and users' functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from figures import note
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import make_args, make_checkpoint, make_samples
from transformers import AutoModelForCausalLM

from vime.errors import VimeError
from vime.sample import Sample
from vime.trainer import estimators
from vime.trainer.batching import samples_to_train_data
from vime.trainer.trainer import Trainer

NewTrainer = Callable[..., Trainer]
HERE = "test_estimators"


def columns(args: Any, seed: int = 0) -> dict[str, list]:
    data = samples_to_train_data(args, make_samples(4, 2, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    for name in ("old_log_probs", "ref_log_probs", "teacher_log_probs", "values"):
        data[name] = [-torch.rand(n, generator=generator) for n in data["response_lengths"]]
    return data


def by_hand(args: Any, data: dict[str, list]) -> list[list[float]]:
    """Unwhitened advantages, sample by sample, token by token."""
    out = []
    for i, mask in enumerate(data["loss_masks"]):
        old, ref, teacher, values = (
            data[name][i].tolist() for name in ("old_log_probs", "ref_log_probs", "teacher_log_probs", "values")
        )
        penalty = [args.kl_coef * (o - r) * m for o, r, m in zip(old, ref, mask, strict=True)]
        reward, siblings = data["raw_reward"][i], data["raw_reward"][i - i % 2 : i - i % 2 + 2]
        mean, spread = statistics.fmean(siblings), statistics.stdev(siblings) + 1e-6
        match args.advantage_estimator:
            case "grpo" | "gspo" | "cispo":
                own = [(reward - mean) / spread] * len(mask)
            case "reinforce_plus_plus_baseline":
                own = [reward - mean - p for p in penalty]
            case "on_policy_distillation":
                own = [0.0] * len(mask)
            case "reinforce_plus_plus":
                tokens = [-p for p in penalty]
                if any(mask):
                    tokens[max(t for t, m in enumerate(mask) if m)] += reward
                own = [sum(args.gamma**k * x for k, x in enumerate(tokens[t:])) for t in range(len(mask))]
            case "ppo":
                tokens = [-p for p in penalty]
                tokens[-1] += reward
                after = [*values[1:], 0.0]
                deltas = [x + args.gamma * a - v for x, a, v in zip(tokens, after, values, strict=True)]
                decay = args.gamma * args.lambd
                own = [sum(decay**k * d for k, d in enumerate(deltas[t:])) for t in range(len(mask))]
        if args.use_opd:
            gap = [(o - q) * m for o, q, m in zip(old, teacher, mask, strict=True)]
            own = [a - args.opd_kl_coef * g for a, g in zip(own, gap, strict=True)]
        out.append(own)
    return out


ESTIMATORS = (
    "grpo",
    "gspo",
    "cispo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "ppo",
    "on_policy_distillation",
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ESTIMATORS), st.integers(0, 50), st.booleans(), st.booleans())
def test_advantages(estimator: str, seed: int, distil: bool, whitened: bool) -> None:
    coefficient = 0.3 if estimator in estimators.KL_IN_REWARD else 0.0
    args = make_args(
        "", advantage_estimator=estimator, kl_coef=coefficient, gamma=0.9, lambd=0.8, use_opd=distil, opd_kl_coef=0.5,
        normalize_advantages=whitened,
    )  # fmt: skip
    data = columns(args, seed)
    expected = by_hand(args, data)
    estimators.compute(args, data, lambda moments: moments)
    if whitened:
        kept = [
            a
            for row, mask in zip(expected, data["loss_masks"], strict=True)
            for a, m in zip(row, mask, strict=True)
            if m
        ]
        mean, spread = statistics.fmean(kept), math.sqrt(statistics.variance(kept)) + 1e-6
        expected = [[(a - mean) / spread for a in row] for row in expected]
    for own, row in zip(data["advantages"], expected, strict=True):
        if not whitened or spread > 1e-3:
            note(
                "C11" if distil else "C1",
                "advantages with distillation" if distil else "advantages of each estimator",
                own,
                row,
            )
        assert own.tolist() == pytest.approx(row, rel=1e-3, abs=1e-4 if not whitened or spread > 1e-3 else 1.0)


@pytest.mark.parametrize("estimator", ["reinforce_plus_plus", "ppo"])
def test_ranks_with_parts_of_the_samples_get_the_advantages_of_one_with_all(estimator: str) -> None:
    """Also the rank that has none."""
    args = make_args("", advantage_estimator=estimator, normalize_advantages=True, gamma=0.9, lambd=0.9)
    whole = columns(args)
    estimators.compute(args, whole, lambda moments: moments)
    parts = [[0, 3, 4], [], [1, 2, 5, 6, 7]]
    pieces = [{name: [column[i] for i in part] for name, column in columns(args).items()} for part in parts]
    seen: list[torch.Tensor] = []
    for piece in pieces:
        estimators.compute(args, dict(piece), lambda moments: seen.append(moments) or moments)
    total = torch.stack(seen).sum(0)
    for part, piece in zip(parts, pieces, strict=True):
        estimators.compute(args, piece, lambda _: total)
        for i, own in zip(part, piece["advantages"], strict=True):
            torch.testing.assert_close(own, whole["advantages"][i])


# -- the critic ---------------------------------------------------------------------------------------------------------------

PPO: dict[str, Any] = {
    "advantage_estimator": "ppo", "kl_coef": 0.1, "gamma": 0.95, "lambd": 0.9, "clip_grad": 0.0, "adam_eps": 1e-3,
    "micro_batch_size": 2,
}  # fmt: skip


def hidden_and_log_probs(model: Any, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    out = model(torch.tensor([sample.tokens]), output_hidden_states=True)
    rows = slice(sample.prompt_length - 1, len(sample.tokens) - 1)
    response = torch.tensor(sample.tokens[sample.prompt_length :])
    return out.hidden_states[-1][0, rows], out.logits[0, rows].log_softmax(-1).gather(-1, response[:, None])[:, 0]


def adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.0)


def test_ppo_with_a_critic_equals_a_plain_reimplementation(
    tmp_path: Path, checkpoints: dict[str, Path], new_trainer: NewTrainer
) -> None:
    """Two rollouts of two steps: values, returns, value loss, policy loss and both models' weights."""
    elsewhere = make_checkpoint(tmp_path / "ref", "qwen3", seed=9)
    trainer = new_trainer("qwen3", **PPO, ref_load=str(elsewhere), global_batch_size=4)
    policy, critic, ref = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (checkpoints["qwen3"], checkpoints["qwen3"], elsewhere)
    )
    critic.lm_head = torch.nn.Linear(64, 1, bias=False)
    torch.nn.init.zeros_(critic.lm_head.weight)
    of_policy, of_critic = adamw(policy), adamw(critic)

    def values_of(sample: Sample) -> torch.Tensor:
        return critic.lm_head(
            critic.model(torch.tensor([sample.tokens])).last_hidden_state[0, sample.prompt_length - 1 : -1]
        )[:, 0]

    for rollout in range(2):
        samples = make_samples(4, 2, seed=rollout)
        metrics = trainer.train(rollout, samples)
        with torch.no_grad():
            old = [hidden_and_log_probs(policy, s)[1] for s in samples]
            reference = [hidden_and_log_probs(ref, s)[1] for s in samples]
            values = [values_of(s) for s in samples]
        advantages = []
        for i, s in enumerate(samples):
            reward = -0.1 * (old[i] - reference[i]) * torch.tensor(s.loss_mask)
            reward[-1] += s.reward
            row, running = [], 0.0
            for t in reversed(range(s.response_length)):
                after = values[i][t + 1] if t + 1 < s.response_length else 0.0
                running = reward[t] + 0.95 * after - values[i][t] + 0.95 * 0.9 * running
                row.append(float(running))
            advantages.append(torch.tensor(row[::-1]))
        value_losses, losses = [], []
        for half in (range(4), range(4, 8)):
            value_loss, loss = torch.zeros(()), torch.zeros(())
            for i in half:
                mask = torch.tensor(samples[i].loss_mask, dtype=torch.float32)
                share = mask / mask.sum().clamp_min(1) / 4
                now, target = values_of(samples[i]), advantages[i] + values[i]
                near = values[i] + (now - values[i]).clamp(-0.2, 0.2)
                value_loss = value_loss + (torch.maximum((now - target) ** 2, (near - target) ** 2) * share).sum()
                ratio = (hidden_and_log_probs(policy, samples[i])[1] - old[i]).exp()
                token = torch.maximum(-ratio * advantages[i], -ratio.clamp(0.8, 1.2) * advantages[i])
                loss = loss + (token * share).sum()
            for optimizer, total in ((of_critic, value_loss), (of_policy, loss)):
                optimizer.zero_grad()
                total.backward()
                optimizer.step()
            value_losses.append(value_loss.item())
            losses.append(loss.item())
        assert metrics["train/critic-value_loss"] == pytest.approx(statistics.fmean(value_losses), rel=1e-4)
        assert metrics["train/loss"] == pytest.approx(statistics.fmean(losses), rel=1e-4, abs=2e-6)
    state = policy.state_dict()
    for name, tensor in trainer.iter_hf_weights():
        assert (tensor - state[name]).abs().max() <= 5e-6, name
    assert (trainer.critic.model.head.weight - critic.lm_head.weight).abs().max() <= 1e-5


def test_the_critic_learns_alone_at_first(new_trainer: NewTrainer) -> None:
    trainer = new_trainer("qwen3", **PPO | {"kl_coef": 0.0}, num_critic_only_steps=2)
    before = {name: tensor.clone() for name, tensor in trainer.iter_hf_weights()}
    losses = []
    for rollout in range(2):
        metrics = trainer.train(rollout, make_samples(4, 2, seed=5))
        losses.append(metrics["train/critic-value_loss"])
        assert "train/loss" not in metrics
    assert losses[1] < losses[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.iter_hf_weights())
    assert "train/loss" in trainer.train(2, make_samples(4, 2, seed=5))
    assert any(not torch.equal(tensor, before[name]) for name, tensor in trainer.iter_hf_weights())


def test_policy_and_critic_resume_bit_for_bit(new_trainer: NewTrainer, tmp_path: Path) -> None:
    flags = PPO | {"kl_coef": 0.0, "save": str(tmp_path)}
    straight = new_trainer("qwen3", **flags)
    for rollout in range(4):
        straight.train(rollout, make_samples(4, 2, seed=rollout))
        if rollout == 1:
            straight.save(1)
    resumed = new_trainer("qwen3", **flags, load=str(tmp_path))
    assert resumed.started_at == 2
    for rollout in (2, 3):
        resumed.train(rollout, make_samples(4, 2, seed=rollout))
    for one, two in ((straight.model, resumed.model), (straight.critic.model, resumed.critic.model)):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_overrides_of_the_critic(new_trainer: NewTrainer, tmp_path: Path) -> None:
    file = tmp_path / "roles.yaml"
    file.write_text("megatron: [{role: critic, overrides: {lr: 0.5}}]")
    trainer = new_trainer("qwen3", **PPO | {"kl_coef": 0.0, "megatron_config_path": str(file)})
    assert (trainer.critic.learner.lr, trainer.actor.lr) == (0.5, 1e-3)
    file.write_text("megatron: [{role: critic, overrides: {lrr: 0.5}}]")
    with pytest.raises(VimeError, match="'lrr' is no option"):
        new_trainer("qwen3", **PPO, megatron_config_path=str(file))


# -- teacher and reference -------------------------------------------------------------------------------------------------------


def test_a_megatron_teacher_is_scored_at_the_rollouts_temperature(new_trainer: NewTrainer, tmp_path: Path) -> None:
    elsewhere = make_checkpoint(tmp_path / "teacher", "qwen3", seed=4)
    flags = {"use_opd": True, "opd_type": "megatron", "opd_teacher_load": str(elsewhere), "rollout_temperature": 0.7}
    trainer = new_trainer("qwen3", advantage_estimator="on_policy_distillation", **flags)
    teacher = AutoModelForCausalLM.from_pretrained(elsewhere, dtype=torch.float32)
    samples = make_samples(4, 2)
    own = trainer.log_probs(samples)
    gaps = []
    for sample, log_probs in zip(samples, own, strict=True):
        with torch.no_grad():
            logits = teacher(torch.tensor([sample.tokens])).logits[0, sample.prompt_length - 1 : -1] / 0.7
        chosen = torch.tensor(sample.tokens[sample.prompt_length :])
        gap = log_probs - logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
        gaps += [x for x, m in zip(gap.tolist(), sample.loss_mask, strict=True) if m]
    metrics = trainer.train(0, samples)
    assert metrics["train/opd_reverse_kl"] == pytest.approx(statistics.fmean(gaps), rel=1e-4)


def test_distillation_without_a_teacher_is_refused(new_trainer: NewTrainer) -> None:
    with pytest.raises(VimeError, match="needs --use-opd"):
        new_trainer("qwen3", advantage_estimator="on_policy_distillation")
    trainer = new_trainer("qwen3", use_opd=True, opd_type="vllm")
    with pytest.raises(VimeError, match="carry no teacher_log_probs"):
        trainer.train(0, make_samples(4, 2))


def test_a_reference_that_follows_the_policy(new_trainer: NewTrainer, tmp_path: Path) -> None:
    """Copied after every second rollout, and kept over a resume: the KL of a fresh copy is 0 in the next rollout's first step."""
    flags = {
        "use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3", "ref_update_interval": 2, "lr": 1e-2,
        "save": str(tmp_path),
    }  # fmt: skip
    flags["ref_load"] = new_trainer("qwen3").args.hf_checkpoint
    trainer = new_trainer("qwen3", **flags)
    drift = []
    for rollout in range(4):
        drift.append(trainer.train(rollout, make_samples(4, 2, seed=rollout))["train/kl_loss"])
        if rollout == 2:
            trainer.save(2)
    assert max(drift[0], drift[2]) < 1e-9 < 1e-6 < min(drift[1], drift[3])
    resumed = new_trainer("qwen3", **flags, load=str(tmp_path))
    assert resumed.train(3, make_samples(4, 2, seed=3))["train/kl_loss"] == drift[3]


# -- users' functions ------------------------------------------------------------------------------------------------------------


def length_advantages(args: Any, rollout_data: dict[str, list]) -> None:
    rollout_data["advantages"] = [torch.full((n,), 1.0 / n) for n in rollout_data["response_lengths"]]


def short_advantages(args: Any, rollout_data: dict[str, list]) -> None:
    rollout_data["advantages"] = [torch.zeros(max(n - 1, 0)) for n in rollout_data["response_lengths"]]


def double_advantages(args: Any, rollout_data: dict[str, list]) -> None:
    rollout_data["advantages"] = [2 * a for a in rollout_data["advantages"]]


def add_rollout_id(args: Any, rollout_id: int, rollout_data: dict[str, list]) -> None:
    rollout_data["advantages"] = [a + rollout_id for a in rollout_data["advantages"]]


def own_ppo(args: Any, batch: dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Callable) -> tuple:
    log_probs = logits.log_softmax(-1)[:, :97].gather(-1, batch["targets"][:, None])[:, 0]
    ratio = (log_probs - torch.cat(batch["old_log_probs"] if "old_log_probs" in batch else [log_probs.detach()])).exp()
    advantages = torch.cat(batch["advantages"])
    token = torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)
    return sum_of_sample_mean(token), {"mine": sum_of_sample_mean(ratio)}


def own_reducer(
    total_lengths: list[int], response_lengths: list[int], loss_masks: list[torch.Tensor], per_token: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The default one, written by a user."""

    def reduce(values: torch.Tensor) -> torch.Tensor:
        parts = zip(values.split(response_lengths), loss_masks, strict=True)
        return sum((x * m).sum() / (1 if per_token else m.sum().clamp_min(1)) for x, m in parts)

    return reduce


def drop_first(args: Any, *, pg_loss: torch.Tensor, loss_masks: list[torch.Tensor], **_: Any) -> tuple:
    masks = [m.clone() for m in loss_masks]
    for mask in masks:
        mask[:1] = 0
    return pg_loss * 3, masks, {"kept": masks}


def outcome(new_trainer: NewTrainer, **flags: Any) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    trainer = new_trainer("llama", **{"adam_eps": 1e-3, "micro_batch_size": 3, "global_batch_size": 4} | flags)
    metrics = trainer.train(2, make_samples(4, 2))
    return metrics, {name: tensor.clone() for name, tensor in trainer.iter_hf_weights()}


def assert_equal_outcomes(one: tuple, two: tuple, keys: tuple[str, ...] = ("train/loss", "train/grad_norm")) -> None:
    for key in keys:
        assert two[0][key] == pytest.approx(one[0][key], rel=1e-5, abs=3e-7)
    for name, tensor in one[1].items():
        assert (tensor - two[1][name]).abs().max() <= 1e-6, name


@pytest.mark.parametrize("per_token", [False, True])
def test_a_users_loss_and_reducer_equal_ours_when_they_say_the_same(new_trainer: NewTrainer, per_token: bool) -> None:
    ours = outcome(new_trainer, calculate_per_token_loss=per_token)
    reduced = outcome(
        new_trainer, calculate_per_token_loss=per_token, custom_pg_loss_reducer_function_path=f"{HERE}.own_reducer"
    )
    assert_equal_outcomes(ours, reduced)
    lossy = outcome(
        new_trainer,
        calculate_per_token_loss=per_token,
        loss_type="custom_loss",
        custom_loss_function_path=f"{HERE}.own_ppo",
    )
    assert_equal_outcomes(ours, lossy)
    assert lossy[0]["train/mine"] == pytest.approx(1.0, abs=0.2)


def test_a_users_advantages(new_trainer: NewTrainer) -> None:
    trainer = new_trainer("llama", custom_advantage_function_path=f"{HERE}.length_advantages")
    samples = make_samples(4, 2)
    metrics = trainer.train(0, samples)
    kept = [s for s in samples if any(s.loss_mask)]
    assert metrics["train/pg_loss"] == pytest.approx(-sum(1 / s.response_length for s in kept) / 8, rel=1e-5)
    with pytest.raises(VimeError, match=r"advantages of sample 0 has \d+ values for \d+ response tokens"):
        new_trainer("llama", custom_advantage_function_path=f"{HERE}.short_advantages").train(0, samples)


@pytest.mark.parametrize(("hook", "factor", "shift"), [("double_advantages", 2, 0), ("add_rollout_id", 1, 2)])
def test_data_postprocessing_takes_both_signatures(new_trainer: NewTrainer, hook: str, factor: int, shift: int) -> None:
    plain, _ = outcome(new_trainer, global_batch_size=8)
    changed, _ = outcome(new_trainer, global_batch_size=8, rollout_data_postprocess_path=f"{HERE}.{hook}")
    share = sum(any(s.loss_mask) for s in make_samples(4, 2)) / 8
    assert changed["train/pg_loss"] == pytest.approx(
        factor * plain["train/pg_loss"] - shift * share, rel=1e-4, abs=1e-6
    )


def test_masks_of_a_users_correction_leave_the_denominator(new_trainer: NewTrainer) -> None:
    flags = {"use_tis": True, "custom_tis_function_path": f"{HERE}.drop_first", "global_batch_size": 8}
    metrics, _ = outcome(new_trainer, **flags)
    samples = make_samples(4, 2)
    rewards = torch.tensor([s.reward for s in samples]).view(4, 2)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).flatten().tolist()
    expected = sum(
        -3 * a * sum(s.loss_mask[1:]) / max(sum(s.loss_mask), 1) for a, s in zip(advantages, samples, strict=True)
    )
    assert metrics["train/pg_loss"] == pytest.approx(expected / 8, rel=1e-4)
    observed, weights = outcome(new_trainer, **flags | {"use_tis": False, "get_mismatch_metrics": True})
    plain, unchanged = outcome(new_trainer, global_batch_size=8)
    assert observed["train/kept"] == pytest.approx(metrics["train/kept"])
    assert observed["train/loss"] == plain["train/loss"]
    assert all(torch.equal(weights[name], tensor) for name, tensor in unchanged.items())


def test_icepop_and_masked_importance_sampling_are_corrections_of_ours(new_trainer: NewTrainer) -> None:
    """masked_importance_sampling in its mask mode is IcePop; in its clip mode it is --use-tis."""
    bounds = {"use_tis": True, "tis_clip_low": 0.5, "tis_clip": 2.0}
    general = "vime.trainer.corrections.masked_importance_sampling"
    for own, mode in (("vime.trainer.corrections.icepop", "mask"), (None, "clip")):
        one = outcome(new_trainer, **bounds, custom_tis_function_path=own)
        two = outcome(new_trainer, **bounds, custom_tis_function_path=general, mis_mode=mode, mis_low=0.5, mis_high=2.0)
        assert_equal_outcomes(one, two)


CALLS: list[tuple] = []


def at_init(args: Any) -> None:
    CALLS.append(("init",))


def before_log_prob(args: Any, model: torch.nn.Module, store_prefix: str) -> None:
    CALLS.append(("log_prob", store_prefix))


def before_step(args: Any, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any) -> None:
    CALLS.append(("step", rollout_id, step_id, opt_param_scheduler.num_steps))


def test_megatron_hooks_are_called_where_they_say(new_trainer: NewTrainer, checkpoints: dict[str, Path]) -> None:
    import test_estimators as me

    me.CALLS.clear()
    trainer = new_trainer(
        "llama", global_batch_size=4, use_kl_loss=True, kl_loss_coef=0.1, ref_load=str(checkpoints["llama"]),
        custom_megatron_init_path=f"{HERE}.at_init",
        custom_megatron_before_log_prob_hook_path=f"{HERE}.before_log_prob",
        custom_megatron_before_train_step_hook_path=f"{HERE}.before_step",
    )  # fmt: skip
    trainer.train(5, make_samples(4, 2))
    assert me.CALLS == [("init",), ("log_prob", "ref_"), ("log_prob", ""), ("step", 5, 0, 0), ("step", 5, 1, 1)]
