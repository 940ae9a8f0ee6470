"""Losses and their parts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

_LONGEST = 512


def smoothed_likelihood(
    args: Namespace,
    batch: dict[str, Any],
    logits: torch.Tensor,
    sum_of_sample_mean: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, dict[str, Any]]:
    """--custom-loss-function-path (--loss-type custom_loss): cross entropy with labels smoothed by 0.1 (arXiv 1512.00567, section 7)."""
    log_probs = logits.log_softmax(-1)
    sampled = log_probs.gather(-1, batch["targets"][:, None])[:, 0]
    loss = sum_of_sample_mean(-(0.9 * sampled + 0.1 * log_probs.mean(-1)))
    return loss, {"nll": sum_of_sample_mean(-sampled)}


def sequence_weight(
    args: Namespace,
    *,
    pg_loss: torch.Tensor,
    train_log_probs: list[torch.Tensor],
    rollout_log_probs: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    **_: Any,
) -> tuple[torch.Tensor, None, dict[str, list[torch.Tensor]]]:
    """--custom-tis-function-path: one importance weight an answer, truncated at --tis-clip."""
    weights = []
    for train, engine, mask in zip(train_log_probs, rollout_log_probs, loss_masks, strict=True):
        ratio = ((train - engine) * mask).sum().exp().clamp(max=args.tis_clip)
        weights.append(torch.ones_like(train) * ratio)
    return pg_loss * torch.cat(weights), None, {"sequence_weight": weights}


def by_constant_length(
    total_lengths: list[int], response_lengths: list[int], loss_masks: list[torch.Tensor], per_token: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    """--custom-pg-loss-reducer-function-path: divide by a constant instead of each answer's length, so long wrong answers are not spared
    (Dr. GRPO, arXiv 2503.20783)."""
    masks = torch.cat(loss_masks)
    return lambda values: (values * masks).sum() / _LONGEST
