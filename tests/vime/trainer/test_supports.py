"""Top-p replay and score centering in the trainer, against a plain reimplementation; records that cannot be right are refused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from figures import note
from tiny_models import VOCAB, make_args, make_checkpoint, make_samples
from transformers import AutoModelForCausalLM

from vime.errors import VimeError
from vime.sample import Sample
from vime.trainer.batching import samples_to_train_data
from vime.trainer.support import Support, lay_out, of_sample
from vime.trainer.trainer import Trainer

NewTrainer = Callable[..., Trainer]


def sampler_log_probs(model: Any, sample: Sample, temperature: float) -> torch.Tensor:
    """[response tokens, vocabulary], of a Hugging Face model."""
    logits = model(torch.tensor([sample.tokens])).logits[0, sample.prompt_length - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def nucleus(log_probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """log q on the nucleus, -inf elsewhere; same shape."""
    ordered, order = log_probs.exp().sort(-1, descending=True)
    kept = torch.zeros_like(log_probs, dtype=torch.bool).scatter(-1, order, ordered.cumsum(-1) - ordered < top_p)
    return log_probs.masked_fill(~kept, -math.inf).log_softmax(-1)


@torch.no_grad()
def sampled(
    model: Any, groups: int, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0
) -> list[Sample]:
    """Samples drawn token by token from `model`, with the records an engine gives: nucleus, or the k likeliest tokens."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    samples = make_samples(groups, 2, seed=seed)
    for sample in samples:
        length = sample.response_length
        sample.tokens, sample.response_length = sample.tokens[: sample.prompt_length], 0
        ids, offsets, values, head, head_values, log_probs = [], [0], [], [], [], []
        for _ in range(length):
            full = (model(torch.tensor([sample.tokens])).logits[0, -1] / temperature).log_softmax(-1)
            q = nucleus(full[None], top_p)[0] if top_p < 1 else full
            token = int(torch.multinomial(q.exp(), 1, generator=generator))
            sample.tokens.append(token)
            sample.response_length += 1
            log_probs.append(q[token].item())
            support = q.isfinite().nonzero()[:, 0].tolist()
            rng.shuffle(support)
            ids += support
            values += q[support].tolist()
            offsets.append(len(ids))
            best = full.topk(top_k).indices.tolist()
            head.append(best)
            head_values.append(full[best].tolist())
        sample.loss_mask = [int(rng.random() < 0.9) for _ in range(length)]
        sample.rollout_log_probs = log_probs
        if top_p < 1:
            sample.rollout_top_p_token_ids, sample.rollout_top_p_offsets = ids, offsets
            sample.rollout_top_p_log_probs = values
        if top_k:
            sample.rollout_topk_token_ids, sample.rollout_topk_log_probs = head, head_values
    return samples


def load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


# -- replay -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [-1, 3])
def test_replayed_log_probabilities_are_the_engines(
    checkpoints: dict[str, Path], new_trainer: NewTrainer, chunk: int
) -> None:
    """huggingface/trl#4159: at temperature 0.6 and top-p 0.8 the ratio of equal weights was 2; here it is 1 to rounding."""
    flags = {"rollout_temperature": 0.6, "rollout_top_p": 0.8, "log_probs_chunk_size": chunk, "parity_threshold": 1e-5}
    samples = sampled(load(checkpoints["qwen3"]), 4, temperature=0.6, top_p=0.8)
    trainer = new_trainer("qwen3", **flags)
    report = trainer.parity(samples)
    assert report.max < 2e-5
    note("C10", "replayed log-probabilities, temperature 0.6, top-p 0.8", report.max, 0.0)
    metrics = trainer.train(0, samples)
    assert metrics["train/train_rollout_logprob_abs_diff"] < 1e-5
    for sample in samples:  # without the record the same weights look different
        sample.rollout_top_p_offsets = [0] * (sample.response_length + 1)
        sample.rollout_top_p_token_ids = sample.rollout_top_p_log_probs = []
        sample.loss_mask = [0] * sample.response_length
    bare = new_trainer("qwen3", **flags).log_probs(samples)
    gap = max(
        abs(a - b) for s, own in zip(samples, bare, strict=True) for a, b in zip(own, s.rollout_log_probs, strict=True)
    )
    assert gap > 0.05


def test_reference_and_teacher_are_scored_over_the_full_vocabulary(
    tmp_path: Path, checkpoints: dict[str, Path], new_trainer: NewTrainer
) -> None:
    """The same weights as reference: the KL over the nucleus would be 0 and hide that top-p moved the policy."""
    model = load(checkpoints["qwen3"])
    samples = sampled(model, 4, top_p=0.6)
    trainer = new_trainer("qwen3", rollout_top_p=0.6, use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k1", ref_load=str(checkpoints["qwen3"]))  # fmt: skip
    metrics = trainer.train(0, samples)
    total = 0.0
    for sample in samples:
        with torch.no_grad():
            full = sampler_log_probs(model, sample, 1.0)
        chosen = torch.tensor(sample.tokens[sample.prompt_length :])
        kl = torch.tensor(sample.rollout_log_probs) - full.gather(-1, chosen[:, None])[:, 0]
        mask = torch.tensor(sample.loss_mask)
        total += ((kl * mask).sum() / mask.sum().clamp_min(1)).item() / 8
    assert total > 0.05
    assert metrics["train/kl_loss"] == pytest.approx(total, rel=1e-4)


# -- centering ----------------------------------------------------------------------------------------------------------------


def step_by_hand(
    model: Any, samples: list[Sample], *, temperature: float, top_p: float, top_k: int, low: float, high: float
) -> tuple[float, dict[str, torch.Tensor]]:
    """One step of centred REINFORCE with truncated weights, summing over the whole vocabulary, in fp64; loss and gradients."""
    rewards = torch.tensor([s.reward for s in samples], dtype=torch.float64).view(-1, 2)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).flatten()
    total = torch.zeros((), dtype=torch.float64)
    for sample, advantage in zip(samples, advantages, strict=True):
        p = sampler_log_probs(model, sample, temperature)
        q = torch.full_like(p, -math.inf)
        for t in range(sample.response_length):
            if top_p < 1:
                a, b = sample.rollout_top_p_offsets[t : t + 2]
                ids, values = sample.rollout_top_p_token_ids[a:b], sample.rollout_top_p_log_probs[a:b]
            else:
                ids, values = sample.rollout_topk_token_ids[t], sample.rollout_topk_log_probs[t]
            q[t, ids] = torch.tensor(values, dtype=torch.float64)
        head = q.isfinite()
        if top_p < 1:
            p = p - p.masked_fill(~head, -math.inf).logsumexp(-1, keepdim=True)
        ratio = torch.where(head, torch.exp(p.detach() - q), 0.0)
        if top_p < 1:
            alpha = torch.ones(len(p), 1, dtype=torch.float64).clamp(low, high)
        else:
            rho = (1 - torch.where(head, q.exp(), 0.0).sum(-1, keepdim=True)) / (
                1 - torch.where(head, p.detach().exp(), 0.0).sum(-1, keepdim=True)
            )
            alpha = rho * (1 / rho).clamp(low, high)
        residual = torch.where(head, q.exp() * ratio.clamp(low, high) - alpha * p.detach().exp(), 0.0)
        control = (residual * torch.where(head, p, 0.0)).sum(-1)
        chosen = torch.tensor(sample.tokens[sample.prompt_length :])
        log_p = p.gather(-1, chosen[:, None])[:, 0]
        weight = torch.exp(log_p.detach() - torch.tensor(sample.rollout_log_probs, dtype=torch.float64)).clamp(
            low, high
        )
        token = -advantage * weight * log_p + advantage * control
        mask = torch.tensor(sample.loss_mask, dtype=torch.float64)
        total = total + (token * mask).sum() / mask.sum().clamp_min(1) / len(samples)
    model.zero_grad()
    total.backward()
    return total.item(), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(("top_p", "top_k"), [(0.8, 0), (1.0, 5)])
def test_a_centred_step_equals_a_plain_reimplementation(
    tmp_path: Path, checkpoints: dict[str, Path], new_trainer: NewTrainer, top_p: float, top_k: int
) -> None:
    """The sampler has other weights than the trainer, so there is something to centre and to weigh."""
    sampler = load(make_checkpoint(tmp_path / "sampler", "qwen3", seed=1))
    samples = sampled(sampler, 4, temperature=0.8, top_p=top_p, top_k=top_k)
    trainer = new_trainer(
        "qwen3", rollout_temperature=0.8, rollout_top_p=top_p, use_score_centering=True, score_centering_top_k=max(top_k, 1),
        use_tis=True, tis_clip=1.5, tis_clip_low=0.2, parity_threshold=None, clip_grad=0.0, micro_batch_size=3,
    )  # fmt: skip
    model = load(checkpoints["qwen3"]).double()
    loss, gradients = step_by_hand(model, samples, temperature=0.8, top_p=top_p, top_k=top_k, low=0.2, high=1.5)
    norm = math.sqrt(sum(g.square().sum().item() for g in gradients.values()))
    metrics = trainer.train(0, samples)
    assert metrics["train/pg_loss"] == pytest.approx(loss, rel=1e-4)
    assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    note("C9", "loss of a centred step", metrics["train/pg_loss"], loss)
    note("C9", "gradient norm of a centred step, relative", metrics["train/grad_norm"] / norm, 1.0)
    assert abs(metrics["train/sc_correction"]) > 1e-3
    assert metrics["train/sc_sampler_head_mass"] <= 1 + 1e-5


# -- records that cannot be right -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(checkpoints: dict[str, Path]) -> list[Sample]:
    return sampled(load(checkpoints["qwen3"]), 1, top_p=0.8, top_k=3, seed=3)


def spoil(sample: Sample, **fields: Any) -> Sample:
    from dataclasses import replace

    return replace(sample, loss_mask=[1] * sample.response_length, **fields)


def test_supports_that_cannot_be_right_are_refused(drawn: list[Sample]) -> None:
    sample = spoil(drawn[0])
    ids, values = sample.rollout_top_p_token_ids, sample.rollout_top_p_log_probs
    first = sample.rollout_top_p_offsets[1]
    sampled_at = ids.index(sample.tokens[sample.prompt_length])
    args = make_args("", rollout_top_p=0.8, use_score_centering=True)
    mask = [1] * sample.response_length

    def refuse(expected: str, **fields: Any) -> None:
        with pytest.raises(VimeError, match=expected):
            of_sample(args, spoil(sample, **fields), mask, "sample 7")

    refuse("sample 7: the support of token 0 holds the id -1", rollout_top_p_token_ids=[-1, *ids[1:]])
    refuse(r"holds the id 2147483648", rollout_top_p_token_ids=[2**31, *ids[1:]])
    wide = next(
        t for t in range(len(mask)) if sample.rollout_top_p_offsets[t + 1] - sample.rollout_top_p_offsets[t] > 1
    )
    at = sample.rollout_top_p_offsets[wide]
    refuse(
        f"the support of token {wide} holds the id {ids[at]} twice",
        rollout_top_p_token_ids=[*ids[: at + 1], ids[at], *ids[at + 2 :]],
    )
    for bad in (math.nan, 0.5, -math.inf):
        refuse(r"is no log-probability \(support of token 0\)", rollout_top_p_log_probs=[bad, *values[1:]])
    other = list(ids)
    other[sampled_at] = next(i for i in range(VOCAB) if i not in ids[:first])
    refuse("token 0 was sampled from a support that does not hold it", rollout_top_p_token_ids=other)
    moved = list(values)
    moved[sampled_at] -= 0.01
    refuse("token 0 was sampled with log-probability", rollout_top_p_log_probs=moved)


def test_what_the_engine_must_give_is_named(drawn: list[Sample]) -> None:
    sample = drawn[0]
    mask = [1] * sample.response_length
    replay = make_args("", rollout_top_p=0.8)
    with pytest.raises(VimeError, match="did not record from which tokens") as error:
        of_sample(replay, spoil(sample, rollout_top_p_offsets=None, rollout_top_p_token_ids=None), mask, "s")
    assert "--vllm-return-sampling-mask" in error.value.hint
    exact = make_args("", rollout_top_p=0.8, use_score_centering=True)
    with pytest.raises(VimeError, match="needs the sampler's log-probabilities") as error:
        of_sample(exact, spoil(sample, rollout_top_p_log_probs=None), mask, "s")
    assert "vllm-score-centering.patch" in error.value.hint
    head = make_args("", use_score_centering=True)
    with pytest.raises(VimeError, match="likeliest tokens") as error:
        of_sample(head, spoil(sample, rollout_topk_token_ids=None), mask, "s")
    assert "--vllm-max-logprobs" in error.value.hint


def test_masked_tokens_need_no_record(drawn: list[Sample]) -> None:
    sample = drawn[0]
    offsets, ids, values = sample.rollout_top_p_offsets, sample.rollout_top_p_token_ids, sample.rollout_top_p_log_probs
    emptied = spoil(
        sample,
        rollout_top_p_offsets=[0, *(o - offsets[1] for o in offsets[1:])],
        rollout_top_p_token_ids=ids[offsets[1] :],
        rollout_top_p_log_probs=values[offsets[1] :],
    )
    args = make_args("", rollout_top_p=0.8, use_score_centering=True)
    with pytest.raises(VimeError, match="token 0 is trained but has no recorded support"):
        of_sample(args, emptied, [1] * sample.response_length, "s")
    assert of_sample(args, emptied, [0] + [1] * (sample.response_length - 1), "s") is not None


def test_a_sample_that_is_not_trained_needs_no_record(drawn: list[Sample]) -> None:
    bare = spoil(drawn[0], rollout_top_p_offsets=None, rollout_top_p_token_ids=None, rollout_top_p_log_probs=None)
    args = make_args("", rollout_top_p=0.8, use_score_centering=True)
    support = of_sample(args, bare, [0] * bare.response_length, "s")
    assert len(support.ids) == 0
    picks, sampler = lay_out([support], [bare.tokens[bare.prompt_length :]])
    assert len(picks.ids) == len(sampler) == 0


def test_a_sampled_token_is_always_in_its_support() -> None:
    """Replay with ids alone: what was sampled could be sampled, even if another rounding left it out. No record stays none."""
    support = Support(np.array([0, 2, 2, 4]), np.array([5, 7, 8, 9]), None)
    picks, sampler = lay_out([support, support], [[6, 1, 9], [7, 1, 1]])
    assert sampler is None
    rows = [set(picks.ids[picks.rows == t].tolist()) for t in range(6)]
    assert rows == [{5, 6, 7}, set(), {8, 9}, {5, 7}, set(), {1, 8, 9}]
    assert picks.rows.tolist() == sorted(picks.rows.tolist())


def test_columns_carry_supports_only_when_flags_need_them(drawn: list[Sample]) -> None:
    assert "supports" not in samples_to_train_data(make_args(""), drawn)
    assert "supports" in samples_to_train_data(make_args("", rollout_top_p=0.8), drawn)
