"""Score centering (arXiv 2609.20807, eq. 9, 12, 14): a control term that gives the sampled score zero mean. Pure.

The policy gradient adds up A f(p_a / q_a) grad log p_a for sampled a ~ q, f being the importance weight. Its mean under q,
E_q[f grad log p], is not zero when p differs from q, or when f is not the plain ratio, and it multiplies any offset that
advantages have. Here the mean is written as the gradient of a scalar c, to be added as + A c:

    c = sum_v sg(q_v f(p_v / q_v) - alpha p_v) log p_v

over a recorded support. If the support is complete (top-p sampling; p is then normalised on it too) any alpha is exact and
f(1) keeps the scalar centred. If it is the k likeliest tokens, the rest is taken as q = rho p with the masses left over:
rho = (1 - Q) / (1 - P), alpha = rho f(1 / rho), and the head alone is summed, because grad sum_v p_v = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vime.trainer.mismatch import Rule

_LEAST_TAIL = 1e-6


@dataclass(frozen=True)
class Centering:
    """Of each token, fp32 [tokens]: `term` c, differentiable in the log-probabilities; the support's mass under sampler
    and trainer."""

    term: torch.Tensor
    sampler_mass: torch.Tensor
    train_mass: torch.Tensor


def on_support(log_probs: torch.Tensor, rows: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(log of each token's mass on its support [tokens], `log_probs` normalised on it [picks]); differentiable.

    log_probs fp32 [picks] of the support's tokens, `rows` int64 [picks] whose each is. A token without support has mass 1.
    """
    peak = log_probs.new_full((tokens,), float("-inf")).scatter_reduce(0, rows, log_probs.detach(), "amax")
    peak = torch.where(peak.isfinite(), peak, torch.zeros_like(peak))
    total = log_probs.new_zeros(tokens).index_add(0, rows, torch.exp(log_probs - peak[rows]))
    absent = total == 0
    log_mass = torch.where(absent, torch.zeros_like(total), torch.where(absent, 1.0, total).log() + peak)
    return log_mass, log_probs - log_mass[rows]


def centering(
    log_probs: torch.Tensor, sampler: torch.Tensor, rows: torch.Tensor, tokens: int, weight: Rule | None, complete: bool
) -> Centering:
    """The control term of each of `tokens` tokens.

    log_probs, sampler fp32 [picks]: trainer's (as normalised as the sampler's are) and sampler's log-probabilities of the
    support's tokens; `rows` int64 [picks]. `weight` None: no importance weight. `complete`: the support is all that could
    be sampled; else it is the head of the full vocabulary.
    """
    f = weight or torch.ones_like
    p, q = log_probs.detach().exp(), sampler.exp()
    train_mass = p.new_zeros(tokens).index_add(0, rows, p)
    sampler_mass = q.new_zeros(tokens).index_add(0, rows, q)
    if complete:
        alpha = f(torch.ones_like(train_mass))
    else:
        rho = (1 - sampler_mass).clamp_min(_LEAST_TAIL) / (1 - train_mass).clamp_min(_LEAST_TAIL)
        alpha = rho * f(1 / rho)
    residual = q * f(torch.exp(log_probs.detach() - sampler)) - alpha[rows] * p
    term = log_probs.new_zeros(tokens).index_add(0, rows, residual * log_probs)
    return Centering(term, sampler_mass, train_mass)
