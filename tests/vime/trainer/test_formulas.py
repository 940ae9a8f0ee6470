"""Losses, KL and advantages against independent references: plain Python in double precision, and gradcheck."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from figures import note
from hypothesis import given
from hypothesis import strategies as st

from vime.trainer.advantages import group_normalized_rewards, moments, whiten
from vime.trainer.kl import KINDS, kl_estimate
from vime.trainer.losses import negative_log_likelihood, ppo_clip

# Away from the kinks at ratio 0.8, 1.2 and 1, where a gradient is one-sided.
CURRENT = torch.tensor([-1.0, -0.4, -2.0, -0.9, -3.0, -0.1], dtype=torch.float64)
OLD = torch.tensor([-1.1, -1.0, -1.2, -0.8, -1.0, -0.15], dtype=torch.float64)
ADVANTAGE = torch.tensor([0.7, 1.3, -0.5, -2.0, -1.0, 0.0], dtype=torch.float64)


def ppo_by_hand(lp: float, old: float, a: float, low: float, high: float, c: float | None) -> tuple[float, float]:
    ratio = math.exp(lp - old)
    first = -ratio * a
    second = -min(max(ratio, 1 - low), 1 + high) * a
    loss = max(first, second)
    if c is not None and a < 0:
        loss = min(loss, -c * a)
    return loss, float(second > first)


@pytest.mark.parametrize("dual", [None, 3.0, 1.05])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.1, 0.5)])
def test_ppo_clip(low: float, high: float, dual: float | None) -> None:
    token = ppo_clip(CURRENT - OLD, ADVANTAGE, low, high, dual)
    rows = zip(CURRENT.tolist(), OLD.tolist(), ADVANTAGE.tolist(), strict=True)
    expected = [ppo_by_hand(lp, old, a, low, high, dual) for lp, old, a in rows]
    torch.testing.assert_close(token.loss, torch.tensor([e[0] for e in expected], dtype=torch.float64))
    assert token.clipped.tolist() == [e[1] for e in expected]
    note("C2", "loss with clip and dual clip", token.loss, [e[0] for e in expected])
    assert torch.autograd.gradcheck(
        lambda lp: ppo_clip(lp - OLD, ADVANTAGE, low, high, dual).loss, CURRENT.clone().requires_grad_()
    )


def test_dual_clip_of_one_or_less_is_refused() -> None:
    with pytest.raises(ValueError, match="over 1"):
        ppo_clip(CURRENT - OLD, ADVANTAGE, 0.2, 0.2, 1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unbiased", [False, True])
def test_kl_estimators(kind: str, unbiased: bool) -> None:
    def by_hand(d: float) -> float:
        k3 = math.exp(-d) - 1 + d
        return {"k1": d, "k2": d * d / 2, "k3": k3, "low_var_kl": min(max(k3, -10.0), 10.0)}[kind]

    reference = OLD - 4.0 * (torch.arange(6) == 4)
    ratio = torch.exp(CURRENT - OLD) if unbiased else None
    expected = [by_hand(d) for d in (CURRENT - reference).tolist()]
    if ratio is not None:
        expected = [e * r for e, r in zip(expected, ratio.tolist(), strict=True)]
    own = kl_estimate(CURRENT, reference, kind, ratio)
    torch.testing.assert_close(own, torch.tensor(expected, dtype=torch.float64))
    note("C6", "k1, k2, k3, low-var, each also unbiased", own, expected)
    assert torch.autograd.gradcheck(
        lambda lp: kl_estimate(lp, reference, kind, torch.exp(lp - OLD) if unbiased else None),
        CURRENT.clone().requires_grad_(),
    )


def test_unknown_kl_estimator_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="k1, k2, k3, low_var_kl"):
        kl_estimate(CURRENT, OLD, "k4")


def test_kl_estimators_are_unbiased_where_they_claim_to_be() -> None:
    """Expectation over all tokens of a small vocabulary equals the divergence itself."""
    policy, reference, sampler = (torch.randn(9, dtype=torch.float64).log_softmax(0) for _ in range(3))
    divergence = (policy.exp() * (policy - reference)).sum()
    for kind in ("k1", "k3"):
        torch.testing.assert_close((policy.exp() * kl_estimate(policy, reference, kind)).sum(), divergence)
        weighted = kl_estimate(policy, reference, kind, torch.exp(policy - sampler))
        torch.testing.assert_close((sampler.exp() * weighted).sum(), divergence)


def test_negative_log_likelihood() -> None:
    assert torch.equal(negative_log_likelihood(CURRENT).loss, -CURRENT)
    note("C12", "supervised loss", negative_log_likelihood(CURRENT).loss, -CURRENT)


# -- advantages ----------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=5), st.booleans())
def test_group_normalisation_uses_each_groups_own_statistics(groups: list[list[float]], use_std: bool) -> None:
    """THUDM/slime#1414: with uneven groups a prompt's advantages depended on other prompts."""
    rewards = [r for group in groups for r in group]
    ids = [g for g, group in enumerate(groups) for _ in group]
    own = group_normalized_rewards(rewards, ids, list(range(len(rewards))), use_std)
    expected = []
    for group in groups:
        spread = statistics.stdev(group) + 1e-6 if use_std and len(group) > 1 else 1.0
        expected += [(r - statistics.fmean(group)) / spread if len(group) > 1 else 0.0 for r in group]
    assert own == pytest.approx(expected, rel=1e-6, abs=1e-6)
    note("C1", "group normalisation", own, expected)


def test_siblings_of_a_rollout_count_once() -> None:
    alone = group_normalized_rewards([1.0, 0.0, 0.5], ["a"] * 3, [0, 1, 2])
    fanned = group_normalized_rewards([1.0, 1.0, 1.0, 0.0, 0.5], ["a"] * 5, [0, 0, 0, 1, 2])
    assert fanned == pytest.approx([alone[0]] * 3 + alone[1:])


def test_one_rollout_in_several_pieces_is_a_singleton() -> None:
    assert group_normalized_rewards([1.0, 1.0], ["a", "a"], [7, 7]) == [0.0, 0.0]


def test_samples_without_groups_are_cut_evenly_or_refused() -> None:
    assert group_normalized_rewards([1.0, 0.0, 3.0, 2.0], [None] * 4, range(4), group_size=2) == pytest.approx(
        [0.7071, -0.7071] * 2, abs=1e-3
    )
    with pytest.raises(ValueError, match="3 samples without group ids do not divide into groups of 2"):
        group_normalized_rewards([1.0, 0.0, 3.0], [None] * 3, range(3), group_size=2)
    with pytest.raises(ValueError, match="have no group id while others do"):
        group_normalized_rewards([1.0, 0.0], ["a", None], range(2), group_size=2)


@given(st.lists(st.tuples(st.floats(-3, 3), st.booleans()), min_size=1, max_size=30), st.integers(1, 4))
def test_whitening_is_the_same_however_tokens_are_spread(tokens: list[tuple[float, bool]], ranks: int) -> None:
    values = torch.tensor([v for v, _ in tokens], dtype=torch.float64)
    masks = torch.tensor([float(m) for _, m in tokens], dtype=torch.float64)
    total = sum(moments(values[r::ranks], masks[r::ranks]) for r in range(ranks))
    own = torch.empty_like(values)
    for r in range(ranks):
        own[r::ranks] = whiten(values[r::ranks], masks[r::ranks], total)
    kept = [v for v, m in tokens if m]
    mean = statistics.fmean(kept) if kept else 0.0
    scale = math.sqrt(max(statistics.variance(kept), 0)) + 1e-6 if len(kept) > 1 else 1.0
    # Tokens that the mask leaves out have no advantage: theirs is a distance in units of a spread that they are no part of.
    expected = [(v - mean) / scale for v in kept]
    assert own[masks != 0].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-3)
    if len(kept) > 1 and statistics.stdev(kept) > 1e-3:
        note("C1", "whitening over 1 to 4 ranks", own[masks != 0], expected)


@given(st.floats(-3, 3), st.integers(2, 500), st.integers(1, 4))
def test_whitening_equal_values_leaves_nothing(value: float, count: int, ranks: int) -> None:
    values, masks = torch.full((count,), value, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    total = sum(moments(values[r::ranks], masks[r::ranks]) for r in range(ranks))
    assert whiten(values, masks, total).abs().max() <= 1e-6
