"""Losses, corrections, returns and score centering against references of their own: plain Python or autograd in fp64."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
import torch
from figures import note
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.trainer import losses, mismatch
from vime.trainer.centering import centering, on_support
from vime.trainer.returns import discounted_returns, generalized_advantages, reward_at_end, suffix_sums

LENGTHS = [3, 1, 4, 0, 2]
TOKENS = sum(LENGTHS)


def tensors(seed: int, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(TOKENS, generator=generator, dtype=torch.float64) * 0.4 for _ in range(count)]


def masks(seed: int) -> torch.Tensor:
    """Some tokens are masked, and the second sequence wholly."""
    rng = random.Random(seed)
    kept = [float(rng.random() < 0.7) for _ in range(TOKENS)]
    kept[3] = 0.0
    return torch.tensor(kept, dtype=torch.float64)


def sequences(values: torch.Tensor) -> list[list[float]]:
    return [piece.tolist() for piece in values.split(LENGTHS)]


# -- policy losses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_gspo_clips_the_geometric_mean_of_a_sequences_ratios(seed: int) -> None:
    log_ratio, advantages = tensors(seed, 2)
    mask = masks(seed)

    def loss(log_ratio: torch.Tensor) -> torch.Tensor:
        return losses.ppo_clip(losses.sequence_log_ratio(log_ratio, mask, LENGTHS), advantages, 0.05, 0.07).loss

    expected = []
    for ratios, kept, of_token in zip(sequences(log_ratio), sequences(mask), sequences(advantages), strict=True):
        chosen = [x for x, m in zip(ratios, kept, strict=True) if m]
        ratio = math.exp(statistics.fmean(chosen)) if chosen else 1.0
        expected += [max(-ratio * a, -min(max(ratio, 0.95), 1.07) * a) for a in of_token]
    torch.testing.assert_close(loss(log_ratio), torch.tensor(expected, dtype=torch.float64))
    note("C3", "loss of the sequence's mean ratio", loss(log_ratio), expected)
    assert torch.autograd.gradcheck(loss, log_ratio.clone().requires_grad_())


def test_gspo_gives_every_kept_token_of_a_sequence_the_same_gradient() -> None:
    log_ratio = torch.zeros(TOKENS, dtype=torch.float64, requires_grad=True)
    mask = masks(0)
    broadcast = losses.sequence_log_ratio(log_ratio, mask, LENGTHS)
    (gradient,) = torch.autograd.grad(
        losses.ppo_clip(broadcast, torch.ones(TOKENS), 0.2, 0.2).loss.mul(mask).sum(), log_ratio
    )
    assert gradient.tolist() == pytest.approx([-float(m) for m in mask])


@pytest.mark.parametrize("seed", range(5))
def test_cispo_keeps_the_gradient_of_every_token(seed: int) -> None:
    log_probs, old, advantages = tensors(seed, 3)
    current = log_probs.clone().requires_grad_()
    token = losses.cispo(current, current - old, advantages, 0.2, 0.3)
    rows = zip(log_probs.tolist(), old.tolist(), advantages.tolist(), strict=True)
    weights = [(min(max(math.exp(lp - o), 0.8), 1.3), math.exp(lp - o), lp, a) for lp, o, a in rows]
    assert token.loss.tolist() == pytest.approx([-w * a * lp for w, _, lp, a in weights])
    assert token.clipped.tolist() == [float(w != r) for w, r, _, _ in weights]
    (gradient,) = torch.autograd.grad(token.loss.sum(), current)
    assert gradient.tolist() == pytest.approx([-w * a for w, _, _, a in weights])
    note("C4", "loss", token.loss, [-w * a * lp for w, _, lp, a in weights])
    note("C4", "gradient", gradient, [-w * a for w, _, _, a in weights])


def test_reinforce() -> None:
    log_probs, advantages = tensors(1, 2)
    current = log_probs.clone().requires_grad_()
    token = losses.reinforce(current, advantages)
    assert torch.equal(token.loss, -advantages * log_probs)
    (gradient,) = torch.autograd.grad(token.loss.sum(), current)
    assert torch.equal(gradient, -advantages)
    note(
        "C5", "loss and gradient", torch.cat((token.loss, gradient)), torch.cat((-advantages * log_probs, -advantages))
    )


@pytest.mark.parametrize("seed", range(4))
def test_drifted_sequences_lose_their_negative_tokens(seed: int) -> None:
    log_ratio, advantages = tensors(seed, 2)
    mask, delta = masks(seed), 0.05
    expected = []
    for ratios, kept, of_token in zip(sequences(log_ratio), sequences(mask), sequences(advantages), strict=True):
        chosen = [-x for x, m in zip(ratios, kept, strict=True) if m]
        drifted = bool(chosen) and statistics.fmean(chosen) > delta
        expected += [float(not (drifted and a < 0)) for a in of_token]
    own = losses.off_policy_sequence_mask(log_ratio.clone().requires_grad_(), advantages, mask, LENGTHS, delta)
    assert own.tolist() == expected
    note("C8", "tokens that are kept", own, expected)
    assert 0 in expected
    assert not own.requires_grad


@pytest.mark.parametrize("seed", range(3))
def test_value_loss(seed: int) -> None:
    values, old, returns = tensors(seed, 3)
    rows = list(zip(values.tolist(), old.tolist(), returns.tolist(), strict=True))
    near = [min(max(v, o - 0.2), o + 0.2) for v, o, _ in rows]
    token = losses.clipped_value_loss(values, old, returns, 0.2)
    assert token.loss.tolist() == pytest.approx(
        [max((v - r) ** 2, (n - r) ** 2) for (v, _, r), n in zip(rows, near, strict=True)]
    )
    assert token.clipped.tolist() == [
        float((n - r) ** 2 > (v - r) ** 2) for (v, _, r), n in zip(rows, near, strict=True)
    ]
    note(
        "C12",
        "value loss",
        token.loss,
        [max((v - r) ** 2, (n - r) ** 2) for (v, _, r), n in zip(rows, near, strict=True)],
    )
    assert torch.autograd.gradcheck(
        lambda v: losses.clipped_value_loss(v, old, returns, 0.2).loss, values.clone().requires_grad_()
    )


# -- trainer and engine -------------------------------------------------------------------------------------------------


def ratio_by_hand(own: list[float], engine: list[float], kept: list[float], level: str) -> list[float]:
    differences = [a - b for a, b in zip(own, engine, strict=True)]
    chosen = [d for d, m in zip(differences, kept, strict=True) if m]
    match level:
        case "token":
            return [math.exp(d) for d in differences]
        case "sequence":
            return [math.exp(sum(chosen))] * len(own)
    return [math.exp(statistics.fmean(chosen) if chosen else 0.0)] * len(own)


MODES: dict[str, Callable[[float, float, float], float]] = {
    "truncate": lambda r, low, high: min(max(r, 0.0), high),
    "clip": lambda r, low, high: min(max(r, low), high),
    "mask": lambda r, low, high: r if low <= r <= high else 0.0,
}


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from(mismatch.LEVELS),
    st.sampled_from(mismatch.MODES),
    st.sampled_from([None, *mismatch.LEVELS]),
    st.sampled_from([None, 0.6]),
    st.booleans(),
)
def test_corrections(
    seed: int, level: str, mode: str, reject_level: str | None, veto: float | None, normalize: bool
) -> None:
    own, engine = tensors(seed, 2)
    mask = masks(seed)
    found = mismatch.correct(
        own.clone().requires_grad_(), engine, mask, LENGTHS, level=level, mode=mode, low=0.7, high=1.4,
        reject_level=reject_level, reject_low=0.8, reject_high=1.2, veto=veto, normalize=normalize,
    )  # fmt: skip
    weights, keep = [], []
    for p, mu, kept in zip(sequences(own), sequences(engine), sequences(mask), strict=True):
        weights += [MODES[mode](r, 0.7, 1.4) for r in ratio_by_hand(p, mu, kept, level)]
        judged = ratio_by_hand(p, mu, kept, reject_level) if reject_level else [1.0] * len(p)
        single = ratio_by_hand(p, mu, kept, "token")
        vetoed = veto is not None and any(r < veto and m for r, m in zip(single, kept, strict=True))
        keep += [float(0.8 <= r <= 1.2 and not vetoed) for r in judged]
    if normalize:
        chosen = [w for w, k, m in zip(weights, keep, mask.tolist(), strict=True) if k and m]
        mean = max(sum(chosen) / max(len(chosen), 1), 1e-8)
        weights = [w / mean for w in weights]
    assert found.weights.tolist() == pytest.approx(weights, rel=1e-9)
    assert found.keep.tolist() == keep
    note("C7", "weights of token, sequence and geometric mean, truncated, clipped or masked", found.weights, weights)
    note("C7", "tokens that rejection and veto keep", found.keep, keep)
    assert not found.weights.requires_grad


@pytest.mark.parametrize(
    "call", [lambda: mismatch.rule("soft", 0, 1), lambda: mismatch.ratios(*tensors(0, 2), masks(0), LENGTHS, "word")]
)
def test_unknown_names_list_the_known_ones(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="known: t"):
        call()


def test_probabilities_that_vanish_stay_finite() -> None:
    engine = torch.full((TOKENS,), -1e4, dtype=torch.float64)
    for level in mismatch.LEVELS:
        assert mismatch.ratios(torch.zeros(TOKENS), engine, torch.ones(TOKENS), LENGTHS, level).isfinite().all()


# -- returns --------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    st.integers(1, 9),
)
def test_chunked_scan_equals_the_recurrence(seed: int, rows: int, length: int, factor: float, chunk: int) -> None:
    values = torch.randn(rows, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = values.clone()
    for t in range(length - 2, -1, -1):
        expected[:, t] += factor * expected[:, t + 1]
    torch.testing.assert_close(suffix_sums(values, factor, chunk), expected, rtol=1e-12, atol=1e-12)
    note("C1", "discounted sums in chunks", suffix_sums(values, factor, chunk), expected)


def test_a_long_sequence_does_not_lose_precision() -> None:
    values = torch.ones(1, 30_000)
    assert suffix_sums(values, 1.0)[0, 0].item() == 30_000
    assert suffix_sums(values, 0.999)[0, 0].item() == pytest.approx((1 - 0.999**30_000) / 0.001, rel=1e-12)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (0.99, 0.0)])
def test_generalised_advantages(gamma: float, lam: float) -> None:
    rewards, values = tensors(3, 2)
    expected: list[float] = []
    for reward, value in zip(sequences(rewards), sequences(values), strict=True):
        running, out = 0.0, []
        for t in range(len(reward) - 1, -1, -1):
            after = value[t + 1] if t + 1 < len(value) else 0.0
            running = reward[t] + gamma * after - value[t] + gamma * lam * running
            out.append(running)
        expected += out[::-1]
    advantages, returns = generalized_advantages(rewards, values, LENGTHS, gamma, lam)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-6)
    note("C1", "generalised advantages", advantages, expected)
    assert returns.tolist() == pytest.approx([a + v for a, v in zip(expected, values.tolist(), strict=True)], abs=1e-6)


@given(st.permutations(range(len(LENGTHS))))
def test_sequences_do_not_look_at_each_other(order: list[int]) -> None:
    rewards, values = tensors(4, 2)
    lengths = [LENGTHS[i] for i in order]
    shuffled = [torch.cat([x.split(LENGTHS)[i] for i in order]) for x in (rewards, values)]
    together = generalized_advantages(*shuffled, lengths, 0.9, 0.8)[0].split(lengths)
    alone = generalized_advantages(rewards, values, LENGTHS, 0.9, 0.8)[0].split(LENGTHS)
    for place, i in enumerate(order):
        torch.testing.assert_close(together[place], alone[i])


def test_rewards_land_on_the_last_token_that_counts() -> None:
    mask = torch.tensor([1, 1, 0, 0, 1, 0, 1, 0, 1, 1])
    assert reward_at_end([1, 2, 3, 4, 5], LENGTHS, mask).tolist() == [0, 1, 0, 0, 0, 0, 3, 0, 0, 5]
    assert reward_at_end([1, 2, 3, 4, 5], LENGTHS).tolist() == [0, 0, 1, 2, 0, 0, 0, 3, 0, 5]


def test_discounted_returns_of_one_reward() -> None:
    own = discounted_returns(reward_at_end([1.0, 1.0, 1.0, 1.0, 1.0], LENGTHS), LENGTHS, 0.5)
    assert own.tolist() == pytest.approx([0.25, 0.5, 1, 1, 0.125, 0.25, 0.5, 1, 0.5, 1])


# -- score centering --------------------------------------------------------------------------------------------------------

RULES = {"none": None, "truncated": mismatch.truncated(0.2, 1.3), "windowed": mismatch.windowed(0.5, 1.5)}
VOCAB = 12


def policies(seed: int, tokens: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Trainer logits (with gradient) and sampler log-probabilities [tokens, VOCAB], unlike each other."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, VOCAB, generator=generator, dtype=torch.float64) * 1.5
    sampler = (logits + torch.randn(tokens, VOCAB, generator=generator, dtype=torch.float64) * 0.7).log_softmax(-1)
    return logits.requires_grad_(), sampler


def nucleus(sampler: torch.Tensor, top_p: float) -> torch.Tensor:
    order = sampler.argsort(-1, descending=True)
    ordered = sampler.gather(-1, order).exp()
    chosen = torch.zeros_like(sampler, dtype=torch.bool)
    return chosen.scatter(-1, order, ordered.cumsum(-1) - ordered < top_p)


def mean_score(
    logits: torch.Tensor, sampler: torch.Tensor, log_p: torch.Tensor, rule: mismatch.Rule | None
) -> torch.Tensor:
    """E_q[f(p / q) grad log p] with respect to the logits, by enumerating all tokens that q can draw."""
    drawn = sampler.isfinite()
    f = rule or torch.ones_like
    weight = torch.where(drawn, sampler.exp() * f(torch.exp(log_p.detach() - sampler)), 0.0)
    return torch.autograd.grad((weight * torch.where(drawn, log_p, 0.0)).sum(), logits, retain_graph=True)[0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_exact_centering_cancels_the_mean_score(seed: int, rule: str) -> None:
    """The sampler's mean of (score of the sampled token - gradient of the control term) is zero for any policies."""
    logits, sampler = policies(seed)
    chosen = nucleus(sampler, 0.8)
    rows, ids = chosen.nonzero(as_tuple=True)
    q = sampler.masked_fill(~chosen, -math.inf).log_softmax(-1)
    full = logits.log_softmax(-1)
    log_mass, on = on_support(full[rows, ids], rows, 3)
    torch.testing.assert_close(log_mass, full.masked_fill(~chosen, -math.inf).logsumexp(-1))
    term = centering(on, q[rows, ids], rows, 3, RULES[rule], complete=True)
    log_p = full - log_mass[:, None]
    expected = mean_score(logits, q, log_p, RULES[rule])
    (own,) = torch.autograd.grad(term.term.sum(), logits, retain_graph=True)
    assert expected.abs().max() > 0.01  # there is something to cancel
    torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-12)
    note("C9", "mean score over a nucleus, centred", own, expected)
    torch.testing.assert_close(term.train_mass, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_head_centering_is_exact_when_the_tail_is_proportional(seed: int, rule: str) -> None:
    """Its tail model, made true: then any head, also an empty one, centres the score to rounding."""
    logits, sampler = policies(seed)
    full = logits.log_softmax(-1)
    for width in (0, 1, 4, VOCAB - 1):
        head = torch.zeros_like(sampler, dtype=torch.bool).scatter(-1, sampler.topk(width).indices, True)
        head_mass = sampler.exp().mul(head).sum(-1, keepdim=True)
        tail = full.detach().masked_fill(head, -math.inf)
        q = torch.where(head, sampler, tail - tail.logsumexp(-1, keepdim=True) + (1 - head_mass).log())
        rows, ids = head.nonzero(as_tuple=True)
        term = centering(full[rows, ids], q[rows, ids], rows, 3, RULES[rule], complete=False)
        (own,) = torch.autograd.grad(term.term.sum(), logits, retain_graph=True, allow_unused=True)
        own = torch.zeros_like(logits) if own is None else own
        torch.testing.assert_close(own, mean_score(logits, q, full, RULES[rule]), rtol=1e-6, atol=1e-9)
        note(
            "C9",
            "mean score over a head with a proportional tail, centred",
            own,
            mean_score(logits, q, full, RULES[rule]),
        )
        torch.testing.assert_close(term.sampler_mass, head_mass[:, 0])


def test_equal_policies_need_no_centring_over_the_whole_vocabulary() -> None:
    logits, _ = policies(0)
    full = logits.log_softmax(-1)
    rows, ids = torch.ones_like(full, dtype=torch.bool).nonzero(as_tuple=True)
    term = centering(full[rows, ids], full.detach()[rows, ids], rows, 3, None, complete=True)
    assert term.term.abs().max() < 1e-12


def test_sampled_scores_have_zero_mean_to_sampling_error() -> None:
    """200 000 draws from q: the centred mean score is within 4.5 standard errors of zero in every component, which one honest
    run in 8 000 exceeds somewhere (12 components); the uncentred one is far outside."""
    logits, sampler = policies(5, tokens=1)
    rule = RULES["truncated"]
    chosen = nucleus(sampler, 0.9)
    rows, ids = chosen.nonzero(as_tuple=True)
    q = sampler.masked_fill(~chosen, -math.inf).log_softmax(-1)
    on = on_support(logits.log_softmax(-1)[rows, ids], rows, 1)[1]
    term = centering(on, q[rows, ids], rows, 1, rule, complete=True)
    (control,) = torch.autograd.grad(term.term.sum(), logits, retain_graph=True)
    p = torch.zeros(VOCAB, dtype=torch.float64).scatter(0, ids, on.detach().exp())
    draws = torch.multinomial(q[0].exp(), 200_000, replacement=True, generator=torch.Generator().manual_seed(1))
    weight = rule(p[draws] / q[0].exp()[draws])
    score = weight[:, None] * (torch.nn.functional.one_hot(draws, VOCAB) - p)
    deviations = {}
    for name, values in (("plain", score), ("centred", score - control[0])):
        error = values.std(0).clamp_min(1e-12) / len(draws) ** 0.5
        deviations[name] = (values.mean(0).abs() / error)[chosen[0]].max().item()
    assert deviations["centred"] < 4.5 < 20 < deviations["plain"]


def test_a_token_without_support_keeps_its_probability() -> None:
    log_mass, values = on_support(torch.tensor([-0.5, -1.0]), torch.tensor([1, 1]), 3)
    assert log_mass[[0, 2]].tolist() == [0.0, 0.0]
    assert values.exp().sum().item() == pytest.approx(1.0)
