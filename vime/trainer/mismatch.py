"""Importance weights for tokens that the engine's policy mu sampled while the trainer computes p. Pure.

The two differ by kernels, precision or staleness (Yao et al. 2025, "Your efficient RL framework secretly brings you
off-policy RL training"). A *rule* turns a ratio p / mu into a weight; a *level* says what the ratio is of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vime.trainer.reduce import over_tokens, sequence_mean, sequence_sum

Rule = Callable[[torch.Tensor], torch.Tensor]

LEVELS = ("token", "sequence", "geometric")
MODES = ("truncate", "clip", "mask")
# exp of more than this says nothing, and overflows once summed over a sequence.
_LARGEST_LOG = 20.0


def truncated(low: float, high: float) -> Rule:
    """Truncated importance sampling: clamp(ratio, low, high)."""
    return lambda ratio: ratio.clamp(low, high)


def windowed(low: float, high: float) -> Rule:
    """IcePop, masked importance sampling: the ratio within [low, high], else 0."""
    return lambda ratio: torch.where((ratio >= low) & (ratio <= high), ratio, torch.zeros_like(ratio))


def rule(mode: str, low: float, high: float) -> Rule:
    """truncate: clamp(ratio, 0, high); clip: clamp(ratio, low, high); mask: 0 outside [low, high]. Raises ValueError."""
    match mode:
        case "truncate":
            return truncated(0.0, high)
        case "clip":
            return truncated(low, high)
        case "mask":
            return windowed(low, high)
    raise ValueError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")


def ratios(
    log_probs: torch.Tensor, engine_log_probs: torch.Tensor, masks: torch.Tensor, lengths: Sequence[int], level: str
) -> torch.Tensor:
    """p / mu at each token [tokens], without gradient; logarithms within +-20.

    token: of that token; sequence: the product over the kept tokens of its sequence; geometric: their geometric mean.
    Raises ValueError for another level.
    """
    difference = log_probs.detach() - engine_log_probs
    match level:
        case "token":
            log_ratio = difference
        case "sequence":
            log_ratio = over_tokens(sequence_sum(difference, masks, lengths), lengths)
        case "geometric":
            log_ratio = over_tokens(sequence_mean(difference, masks, lengths), lengths)
        case _:
            raise ValueError(f"unknown level {level!r}; known: {', '.join(LEVELS)}")
    return log_ratio.clamp(-_LARGEST_LOG, _LARGEST_LOG).exp()


@dataclass(frozen=True)
class Correction:
    """`weights` [tokens] multiply the loss; `keep` [tokens] in {0, 1} is what rejection left; `ratios` [tokens] as measured."""

    weights: torch.Tensor
    keep: torch.Tensor
    ratios: torch.Tensor


def correct(
    log_probs: torch.Tensor,
    engine_log_probs: torch.Tensor,
    masks: torch.Tensor,
    lengths: Sequence[int],
    *,
    level: str = "token",
    mode: str = "truncate",
    low: float = 0.0,
    high: float = 2.0,
    reject_level: str | None = None,
    reject_low: float = 0.0,
    reject_high: float = float("inf"),
    veto: float | None = None,
    normalize: bool = False,
) -> Correction:
    """Weights by one level and mode, after rejection by another level's bounds.

    `veto`: a sequence with a kept token whose own ratio is under it is rejected whole. `normalize` divides the weights by
    their mean over the kept tokens of these sequences (which makes the result depend on how they are batched).
    Nothing has a gradient. Raises ValueError for an unknown level or mode.
    """
    measured = ratios(log_probs, engine_log_probs, masks, lengths, level)
    weights = rule(mode, low, high)(measured)
    keep = torch.ones_like(weights)
    if reject_level is not None:
        judged = ratios(log_probs, engine_log_probs, masks, lengths, reject_level)
        keep = ((judged >= reject_low) & (judged <= reject_high)).to(weights.dtype)
    if veto is not None:
        own = ratios(log_probs, engine_log_probs, masks, lengths, "token")
        catastrophes = over_tokens(sequence_sum((own < veto).to(weights.dtype), masks, lengths), lengths)
        keep = keep * (catastrophes == 0)
    if normalize:
        kept = masks * keep
        mean = (torch.where(kept != 0, weights, torch.zeros_like(weights))).sum() / kept.sum().clamp_min(1.0)
        weights = weights / mean.clamp_min(1e-8)
    return Correction(weights, keep, measured)
