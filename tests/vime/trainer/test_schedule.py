"""Scheduling invariants, and that results do not depend on how a step is cut."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from figures import note
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import make_args, make_samples

from vime.errors import VimeError
from vime.sample import Sample
from vime.trainer import batching, objective, schedule
from vime.trainer.attention import Rotary
from vime.trainer.batching import RankBatch, samples_to_train_data, split_over_ranks
from vime.trainer.scorer import TokenScores

CPU = torch.device("cpu")
ROTARY = Rotary(torch.ones(2), 1.0)

sizes = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 12)), min_size=1, max_size=40)  # (length, rollout)
options = st.fixed_dictionaries(
    {
        "rollouts_per_step": st.integers(1, 6),
        "ranks": st.integers(1, 4),
        "micro_batch_size": st.integers(1, 5),
        "max_tokens": st.none() | st.integers(8, 120),
        "balance": st.booleans(),
        "by_flops": st.booleans(),
    }
)


@given(sizes, options)
def test_plan_invariants(samples: list[tuple[int, int]], how: dict[str, Any]) -> None:
    lengths, rollouts = [n for n, _ in samples], [r for _, r in samples]
    cost = schedule.forward_cost(16)
    plan = schedule.make_plan(lengths, rollouts, cost=cost, **how)
    placed = [i for step in plan.steps for rank in step for micro in rank for i in micro]
    assert Counter(placed + plan.dropped) == Counter(range(len(samples)))
    assert len(plan.steps) == len(set(rollouts)) // how["rollouts_per_step"]
    for step in plan.steps:
        members = {rollouts[i] for rank in step for micro in rank for i in micro}
        assert len(members) == how["rollouts_per_step"]
        assert len(step) == how["ranks"]
        assert len({len(rank) for rank in step}) == 1
        for micro in (micro for rank in step for micro in rank):
            if how["max_tokens"] is None:
                assert len(micro) <= how["micro_batch_size"]
            elif len(micro) > 1:
                weigh = cost if how["by_flops"] else float
                assert sum(weigh(lengths[i]) for i in micro) <= weigh(how["max_tokens"]) + 1e-9


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 5))
def test_karmarkar_karp_is_a_partition_no_worse_than_its_largest_item(costs: list[int], parts: int) -> None:
    split = schedule.partition(range(len(costs)), [float(c) for c in costs], parts, equal_size=False)
    assert sorted(i for part in split for i in part) == list(range(len(costs)))
    loads = [sum(costs[i] for i in part) for part in split]
    assert max(loads) - min(loads) <= max(costs)


def test_balancing_beats_taking_turns() -> None:
    lengths = [100, 1, 90, 1, 80, 1, 70, 1]
    loads = {}
    for balance in (False, True):
        plan = schedule.make_plan(lengths, range(8), rollouts_per_step=8, ranks=2, balance=balance)
        loads[balance] = [sum(lengths[i] for micro in rank for i in micro) for rank in plan.steps[0]]
    assert max(loads[False]) == 340
    assert max(loads[True]) - min(loads[True]) <= 2


def test_partition_of_equal_size_says_when_it_cannot() -> None:
    with pytest.raises(ValueError, match="5 items do not divide into 2 equal parts"):
        schedule.partition(range(5), [1.0] * 5, 2, equal_size=True)


# -- columns ---------------------------------------------------------------------------------------------------------


def test_columns_are_checked_with_the_sample_named(tmp_path: Any) -> None:
    args = make_args(tmp_path)
    sample = make_samples(1, 1)[0]
    sample.loss_mask = [1] * (sample.response_length + 1)
    with pytest.raises(VimeError, match=f"sample 0: loss_masks has {sample.response_length + 1} entries"):
        samples_to_train_data(args, [sample])
    unprompted = Sample(index=4, group_index=0, tokens=[5, 6], response_length=2, loss_mask=[1, 1], reward=1.0)
    with pytest.raises(VimeError, match="sample 4 has 2 response tokens of 2"):
        samples_to_train_data(args, [unprompted])


def test_removed_samples_are_masked_and_share_no_denominator(tmp_path: Any) -> None:
    samples = make_samples(2, 2)
    samples[1].remove_sample = True
    data = samples_to_train_data(make_args(tmp_path), samples)
    assert not any(data["loss_masks"][1])
    assert data["rollout_mask_sums"][1] == 0
    assert data["rollout_mask_sums"][0] == sum(samples[0].loss_mask)


def test_a_rollout_smaller_than_one_step_is_refused(tmp_path: Any) -> None:
    args = make_args(tmp_path, global_batch_size=8)
    with pytest.raises(VimeError, match="4 trajectories, fewer than --global-batch-size 8"):
        split_over_ranks(args, samples_to_train_data(args, make_samples(2, 2)), 1, 16)


def test_dropped_samples_are_named(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    args = make_args(tmp_path, global_batch_size=4)
    (batch,) = split_over_ranks(args, samples_to_train_data(args, make_samples(3, 2)), 1, 16)
    assert batch.dropped == [4, 5]
    assert "2 of 6 samples" in caplog.text


# -- invariance ------------------------------------------------------------------------------------------------------


def losses_and_gradients(args: Any, data: dict[str, list], batches: list[RankBatch], theta: torch.Tensor) -> dict:
    """Sum over ranks and micro-batches of the objective, where token t of sample i has log-probability theta[i, t]."""
    theta = theta.clone().requires_grad_()
    totals: Counter[str] = Counter()
    for batch in batches:
        rows = [data["sample_indices"].index(i) for i in batch.data["sample_indices"]]
        for step in batch.steps:
            for micro in step.micro_batches:
                if not micro:
                    continue
                packed = batching.pack_micro_batch(
                    batch.data,
                    micro,
                    rotary=ROTARY,
                    dtype=torch.float32,
                    device=CPU,
                    columns=("advantages", "old_log_probs", "ref_log_probs", "rollout_log_probs"),
                    step=step,
                    per_token=args.calculate_per_token_loss,
                )
                log_probs = torch.cat([theta[rows[i], : batch.data["response_lengths"][i]] for i in micro])
                share = objective.evaluate(args, packed, TokenScores(log_probs, log_probs.square()))
                share.loss.backward()
                totals.update({name: value.item() for name, value in share.metrics.items()})
    return {"metrics": totals, "gradient": theta.grad if theta.grad is not None else torch.zeros_like(theta)}


def with_columns(args: Any, samples: list[Sample]) -> dict[str, list]:
    data = samples_to_train_data(args, samples)
    generator = torch.Generator().manual_seed(1)
    data["advantages"] = [torch.full((n,), r) for n, r in zip(data["response_lengths"], data["rewards"], strict=True)]
    for name in ("old_log_probs", "ref_log_probs"):
        data[name] = [-torch.rand(n, generator=generator) for n in data["response_lengths"]]
    return data


def reference(args: Any, data: dict[str, list], theta: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The objective of one step of all samples, written out sample by sample in fp64."""
    theta = theta.double().requires_grad_()
    rollouts = dict.fromkeys(data["rollout_ids"])
    kept = {
        r: sum(sum(m) for m, x in zip(data["loss_masks"], data["rollout_ids"], strict=True) if x == r) for r in rollouts
    }
    total = torch.zeros((), dtype=torch.float64)
    for i, length in enumerate(data["response_lengths"]):
        mask = torch.tensor(data["loss_masks"][i], dtype=torch.float64)
        lp, old, ref, mu = (
            theta[i, :length],
            *(torch.as_tensor(data[c][i]).double() for c in ("old_log_probs", "ref_log_probs", "rollout_log_probs")),
        )
        ratio, a = (lp - old).exp(), data["rewards"][i]
        token = torch.maximum(-ratio * a, -ratio.clamp(0.8, 1.3) * a) * (old - mu).exp().clamp(0.1, 2.0)
        token = token - 0.01 * lp.square() + 0.1 * ((ref - lp).exp() - 1 - (ref - lp))
        denominator = (
            max(sum(kept.values()), 1)
            if args.calculate_per_token_loss
            else max(kept[data["rollout_ids"][i]], 1) * len(rollouts)
        )
        total = total + (token * mask).sum() / denominator
    total.backward()
    return total.item(), theta.grad


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 5),
    ranks=st.integers(1, 4),
    micro=st.integers(1, 5),
    dynamic=st.none() | st.integers(10, 60),
    per_token=st.booleans(),
    fanned=st.lists(st.integers(0, 7), max_size=4),
    removed=st.sets(st.integers(0, 7), max_size=8),
)
def test_objective_equals_its_reference_however_it_is_cut(
    seed: int, ranks: int, micro: int, dynamic: int | None, per_token: bool, fanned: list[int], removed: set[int]
) -> None:
    """Data ranks, micro-batches, sibling fan-out, wholly masked samples and ranks without work change nothing."""
    samples = make_samples(4, 2, seed=seed)
    for a in fanned:  # sample a becomes a piece of rollout 0
        samples[a].rollout_id = 0
        samples[a].group_index = 0
    for i in removed:
        samples[i].remove_sample = True
    rollouts = len({s.rollout_id for s in samples})
    args = make_args(
        "",
        global_batch_size=rollouts,
        micro_batch_size=micro,
        use_dynamic_batch_size=dynamic is not None,
        max_tokens_per_gpu=dynamic,
        calculate_per_token_loss=per_token,
        eps_clip_high=0.3,
        entropy_coef=0.01,
        use_kl_loss=True,
        kl_loss_coef=0.1,
        kl_loss_type="k3",
        use_tis=True,
        tis_clip_low=0.1,
    )
    data = with_columns(args, samples)
    theta = -torch.rand(8, 12, generator=torch.Generator().manual_seed(seed)) * 2
    batches = split_over_ranks(args, data, ranks, 16)
    own = losses_and_gradients(args, data, batches, theta)
    loss, gradient = reference(args, data, theta)
    assert own["metrics"]["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    note("C13", "loss over any ranks, micro-batches and siblings", own["metrics"]["loss"], loss)
    note("C13", "gradient over any ranks, micro-batches and siblings", own["gradient"].double(), gradient)
    torch.testing.assert_close(own["gradient"].double(), gradient, rtol=1e-4, atol=1e-6)


def test_truncated_answers_leave_numerator_and_denominator_together(tmp_path: Any) -> None:
    """huggingface/trl#6369: masked tokens were still counted in the denominator."""
    args = make_args(tmp_path, global_batch_size=4, calculate_per_token_loss=True)
    samples = make_samples(2, 2)
    samples[3].remove_sample = True
    data = samples_to_train_data(args, samples)
    (batch,) = split_over_ranks(args, data, 1, 16)
    assert batch.steps[0].tokens == sum(sum(s.trained_mask) for s in samples)
    packed = batching.pack_micro_batch(
        batch.data, [0, 1, 2, 3], rotary=ROTARY, dtype=torch.float32, device=CPU, step=batch.steps[0], per_token=True
    )
    assert packed.weights.sum().item() == pytest.approx(1.0)


def test_masked_tokens_cannot_poison_the_sum() -> None:
    from vime.trainer.reduce import weighted_sum

    values = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
    total = weighted_sum(values, torch.tensor([0.5, 0.0, 0.0]))
    total.backward()
    assert total.item() == 0.5
    assert values.grad.tolist() == [0.5, 0.0, 0.0]
