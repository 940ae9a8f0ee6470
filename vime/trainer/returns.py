"""Rewards by token -> returns and advantages, over sequences laid one after another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

_CHUNK = 128


def suffix_sums(values: torch.Tensor, factor: float, chunk: int = _CHUNK) -> torch.Tensor:
    """s_t = v_t + factor * s_{t+1} along the last dimension of values [rows, length], in fp64; same shape.

    The recurrence runs over chunks only: within one it is a product with a triangular matrix of powers.
    """
    rows, length = values.shape
    blocks = max(-(-length // chunk), 1)
    padded = torch.nn.functional.pad(values.double(), (0, blocks * chunk - length)).view(rows, blocks, chunk)
    steps = torch.arange(chunk, device=values.device, dtype=torch.float64)
    distance = steps[None, :] - steps[:, None]  # [from, to]
    powers = torch.where(distance >= 0, torch.as_tensor(factor, dtype=torch.float64) ** distance.clamp_min(0), 0.0)
    within = padded @ powers.T
    to_next = torch.as_tensor(factor, dtype=torch.float64) ** (chunk - steps)
    carry = within.new_zeros(rows)
    out = torch.empty_like(within)
    for block in range(blocks - 1, -1, -1):
        out[:, block] = within[:, block] + to_next * carry[:, None]
        carry = out[:, block, 0]
    return out.view(rows, -1)[:, :length]


def discounted_returns(rewards: torch.Tensor, lengths: Sequence[int], gamma: float) -> torch.Tensor:
    """G_t = sum_k gamma^k r_{t+k} within each sequence; rewards [tokens] -> fp32 [tokens]."""
    return _by_sequence(lambda padded: suffix_sums(padded, gamma), rewards, lengths)


def generalized_advantages(
    rewards: torch.Tensor, values: torch.Tensor, lengths: Sequence[int], gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE (arXiv 1506.02438, eq. 16): (advantages, returns = advantages + values), fp32 [tokens] each.

    delta_t = r_t + gamma V_{t+1} - V_t, the value after a sequence's last token being 0.
    """
    after = torch.zeros_like(values, dtype=torch.float64)
    after[:-1] = values[1:]
    ends = torch.tensor([n for n in lengths if n], dtype=torch.int64).cumsum(0) - 1
    after[ends] = 0.0
    deltas = rewards.double() + gamma * after - values.double()
    advantages = _by_sequence(lambda padded: suffix_sums(padded, gamma * lam), deltas, lengths)
    return advantages, advantages + values.float()


def reward_at_end(rewards: Sequence[float], lengths: Sequence[int], masks: torch.Tensor | None = None) -> torch.Tensor:
    """Token rewards [tokens], fp32: the sequence's reward at its last token, or at the last one that `masks` keeps.

    A sequence without such a token gets none.
    """
    result = torch.zeros(sum(lengths))
    first = 0
    for reward, length in zip(rewards, lengths, strict=True):
        kept = range(first, first + length)
        if masks is not None:
            kept = masks[first : first + length].nonzero()[:, 0].add(first).tolist()
        if len(kept):
            result[kept[-1]] = reward
        first += length
    return result


def _by_sequence(
    scan: Callable[[torch.Tensor], torch.Tensor], flat: torch.Tensor, lengths: Sequence[int]
) -> torch.Tensor:
    if not flat.numel():
        return flat.float()
    pieces = [piece for piece in flat.split(list(lengths)) if len(piece)]
    scanned = scan(pad_sequence(pieces, batch_first=True))
    return torch.cat([row[: len(piece)] for row, piece in zip(scanned, pieces, strict=True)]).float()
