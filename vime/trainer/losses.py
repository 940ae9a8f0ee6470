"""Per-token losses. Pure: log-probabilities and advantages in, one value a token out; `reduce` makes the scalar.

Every function takes flat tensors [tokens] of response tokens and is differentiable in the current log-probabilities (or
values). Notation: r = exp(log ratio), the policy being trained over the one before this rollout's first step; A advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vime.trainer.reduce import over_tokens, sequence_mean


@dataclass(frozen=True)
class TokenLoss:
    """`loss` [tokens] to be minimised, and which tokens' gradient the trust region cut [tokens] in {0, 1}."""

    loss: torch.Tensor
    clipped: torch.Tensor


def ppo_clip(
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None = None,
) -> TokenLoss:
    """Clipped surrogate (Schulman et al. 2017, eq. 7) with separate bounds (DAPO, arXiv 2503.14476, eq. 10).

    l = max(-r A, -clip(r, 1 - eps_low, 1 + eps_high) A). With `dual_clip` c > 1 also l <= -c A where A < 0
    (arXiv 1912.09729, eq. 5). Raises ValueError for c <= 1.
    """
    if dual_clip is not None and dual_clip <= 1.0:
        raise ValueError(f"dual clip must be over 1, got {dual_clip}")
    ratio = torch.exp(log_ratio)
    plain = -ratio * advantages
    bounded = -ratio.clamp(1.0 - eps_low, 1.0 + eps_high) * advantages
    loss = torch.maximum(plain, bounded)
    clipped = (bounded > plain).to(loss.dtype)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return TokenLoss(loss, clipped)


def sequence_log_ratio(log_ratio: torch.Tensor, masks: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """GSPO (arXiv 2507.18071, eq. 7): the mean log ratio over a sequence's kept tokens, at each of its tokens."""
    return over_tokens(sequence_mean(log_ratio, masks, lengths), lengths)


def cispo(
    log_probs: torch.Tensor, log_ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> TokenLoss:
    """l = -sg(clip(r, 1 - low, 1 + high)) A log p (arXiv 2506.13585, eq. 4): every token keeps a gradient.

    The paper's form is one-sided, which is low >= 1.
    """
    ratio = torch.exp(log_ratio.detach())
    weight = ratio.clamp(1.0 - low, 1.0 + high)
    return TokenLoss(-weight * advantages * log_probs, (weight != ratio).to(ratio.dtype))


def reinforce(log_probs: torch.Tensor, advantages: torch.Tensor) -> TokenLoss:
    """l = -A log p (Williams 1992)."""
    return TokenLoss(-advantages * log_probs, torch.zeros_like(log_probs))


def off_policy_sequence_mask(
    log_ratio: torch.Tensor, advantages: torch.Tensor, masks: torch.Tensor, lengths: Sequence[int], delta: float
) -> torch.Tensor:
    """Which tokens to keep [tokens] in {0, 1}, without gradient: tokens of negative advantage go when their sequence has
    drifted, that is when the mean of log p_old - log p over its kept tokens is over `delta` (DeepSeek-V3.2, 3.1)."""
    drift = over_tokens(sequence_mean(-log_ratio.detach(), masks, lengths), lengths)
    return 1.0 - ((advantages < 0) & (drift > delta)).to(log_ratio.dtype)


def clipped_value_loss(values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float) -> TokenLoss:
    """max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2), as in the baselines' PPO2."""
    plain = (values - returns).square()
    near = old_values + (values - old_values).clamp(-clip, clip)
    bounded = (near - returns).square()
    return TokenLoss(torch.maximum(plain, bounded), (bounded > plain).to(plain.dtype))


def negative_log_likelihood(log_probs: torch.Tensor) -> TokenLoss:
    """Supervised fine-tuning."""
    return TokenLoss(-log_probs, torch.zeros_like(log_probs))
