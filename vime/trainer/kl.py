"""Estimators of the KL divergence between two policies from the log-probabilities of sampled tokens.

Schulman, "Approximating KL Divergence" (2020), with d = log pi - log pi_ref and samples from pi.
"""

from __future__ import annotations

import torch

KINDS = ("k1", "k2", "k3", "low_var_kl")
_LOW_VARIANCE_BOUND = 10.0


def kl_estimate(
    log_probs: torch.Tensor,
    reference: torch.Tensor,
    kind: str = "k1",
    importance: torch.Tensor | None = None,
) -> torch.Tensor:
    """Per-token estimate of KL(pi || pi_ref), same shape as `log_probs`, differentiable in it.

    k1 = d; k2 = d^2 / 2; k3 = e^-d - 1 + d (never negative); low_var_kl = k3 clamped to [-10, 10].
    With `importance` = pi / pi_old the estimate is unbiased for samples of pi_old, and its gradient goes through the
    ratio too. Raises ValueError for another kind.
    """
    d = log_probs - reference
    match kind:
        case "k1":
            estimate = d
        case "k2":
            estimate = d.square() / 2
        case "k3":
            estimate = torch.expm1(-d) + d
        case "low_var_kl":
            estimate = (torch.expm1(-d) + d).clamp(-_LOW_VARIANCE_BOUND, _LOW_VARIANCE_BOUND)
        case _:
            raise ValueError(f"unknown KL estimator {kind!r}; known: {', '.join(KINDS)}")
    return estimate if importance is None else importance * estimate
