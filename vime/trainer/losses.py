"""Per-token policy losses. Pure: log-probabilities and advantages in, one value a token out; `reduce` makes the scalar.

Every function takes flat tensors [tokens] of response tokens and is differentiable in the current log-probabilities.
Notation: log_probs under the policy being trained, old_log_probs under it before this rollout's first step,
engine_log_probs under the engine that sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenLoss:
    """`loss` [tokens] to be minimised, and which tokens' gradient the trust region cut [tokens] in {0, 1}."""

    loss: torch.Tensor
    clipped: torch.Tensor


def ppo_clip(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None = None,
) -> TokenLoss:
    """Clipped surrogate (Schulman et al. 2017, eq. 7) with separate bounds (DAPO, arXiv 2503.14476, eq. 10).

    l = max(-r A, -clip(r, 1 - eps_low, 1 + eps_high) A), r = exp(log_probs - old_log_probs). With `dual_clip` c > 1
    also l <= -c A where A < 0 (arXiv 1912.09729, eq. 5). Raises ValueError for c <= 1.
    """
    if dual_clip is not None and dual_clip <= 1.0:
        raise ValueError(f"dual clip must be over 1, got {dual_clip}")
    ratio = torch.exp(log_probs - old_log_probs)
    plain = -ratio * advantages
    bounded = -ratio.clamp(1.0 - eps_low, 1.0 + eps_high) * advantages
    loss = torch.maximum(plain, bounded)
    clipped = (bounded > plain).to(loss.dtype)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return TokenLoss(loss, clipped)


def importance_weight(
    log_probs: torch.Tensor, engine_log_probs: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Truncated importance sampling: (clamp(pi / mu, low, high), which tokens were truncated), both without gradient.

    Corrects for the engine having sampled from mu while the trainer computes pi (Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training").
    """
    ratio = torch.exp(log_probs.detach() - engine_log_probs)
    weight = ratio.clamp(low, high)
    return weight, (weight != ratio).to(ratio.dtype)


def negative_log_likelihood(log_probs: torch.Tensor) -> TokenLoss:
    """Supervised fine-tuning."""
    return TokenLoss(-log_probs, torch.zeros_like(log_probs))
