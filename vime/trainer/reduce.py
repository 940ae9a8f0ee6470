"""From per-token values to a scalar: one weight a token, fixed before the step is cut into ranks and micro-batches.

Both reductions are sums of weight x value over all tokens of a step, so how the step is cut cannot change them:
gradients and metrics of ranks and micro-batches are added, never averaged.

    per rollout:  w_t = m_t / (tokens kept in the rollout) / (rollouts in the step)
    per token:    w_t = m_t / (tokens kept in the step)

Samples that share a rollout id (siblings of one trajectory) share its denominator, so a trajectory counts once, in
however many pieces it comes. A rollout with no kept token weighs nothing; it still counts in the number of rollouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import torch


def rollout_mask_sums(loss_masks: Sequence[Sequence[int]], rollout_ids: Sequence[Hashable]) -> list[int]:
    """For each sample, the number of kept tokens over all samples of its rollout."""
    kept: Counter[Hashable] = Counter()
    for mask, rollout in zip(loss_masks, rollout_ids, strict=True):
        kept[rollout] += sum(mask)
    return [kept[rollout] for rollout in rollout_ids]


def token_weights(
    masks: torch.Tensor,
    lengths: Sequence[int],
    mask_sums: Sequence[int],
    rollouts_in_step: int,
    tokens_in_step: int,
    per_token: bool,
) -> torch.Tensor:
    """Weights [tokens], in the dtype of `masks`, for samples laid one after another.

    masks [tokens] in {0, 1}; `lengths` tokens of each sample; `mask_sums` from `rollout_mask_sums`; the two counts are
    over the whole step, all ranks. Denominators are at least 1.
    """
    if per_token:
        return masks / max(tokens_in_step, 1)
    denominators = torch.tensor([max(n, 1) * max(rollouts_in_step, 1) for n in mask_sums], dtype=masks.dtype)
    return masks / denominators.to(masks.device).repeat_interleave(torch.tensor(lengths, device=masks.device))


def weighted_sum(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Scalar sum of weight x value. Tokens of weight 0 do not count even where their value is infinite or NaN."""
    return torch.where(weights != 0, values, torch.zeros_like(values)).mul(weights).sum()


def sequence_mean(values: torch.Tensor, masks: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Mean of `values` [tokens] over the kept tokens of each sequence, [sequences]; 0 where none is kept."""
    return sequence_sum(values, masks, lengths) / sequence_sum(torch.ones_like(values), masks, lengths).clamp_min(1.0)


def sequence_sum(values: torch.Tensor, masks: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Sum of `values` [tokens] over the kept tokens of each sequence, [sequences]."""
    kept = torch.where(masks != 0, values, torch.zeros_like(values))
    owner = over_tokens(torch.arange(len(lengths), device=values.device), lengths)
    return kept.new_zeros(len(lengths)).index_add(0, owner, kept)


def over_tokens(per_sequence: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """One value a sequence -> one a token [sum of lengths]."""
    return per_sequence.repeat_interleave(torch.tensor(lengths, dtype=torch.int64, device=per_sequence.device))
