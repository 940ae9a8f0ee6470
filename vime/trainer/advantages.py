"""Rewards -> advantages. Pure functions over one rollout, before it is cut over ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch

_EPSILON = 1e-6


def group_normalized_rewards(
    rewards: Sequence[float],
    group_ids: Sequence[Hashable | None],
    rollout_ids: Sequence[Hashable],
    divide_by_std: bool = True,
    group_size: int | None = None,
) -> list[float]:
    """GRPO: (r - mean) / (std + 1e-6) within each group, std unbiased (arXiv 2402.03300, 4.1.2); Dr. GRPO without the std.

    A group is an explicit group id. Samples of one rollout are one observation: their mean reward enters the
    statistics once, and each gets its own (r - mean) / std. A group of one observation gets 0. Where no sample has a
    group id, runs of `group_size` samples are the groups; raises ValueError when that does not divide them, or when
    only some have an id: a mean over unrelated prompts would train silently wrong.
    """
    if not len(rewards) == len(group_ids) == len(rollout_ids):
        raise ValueError(f"{len(rewards)} rewards, {len(group_ids)} group ids, {len(rollout_ids)} rollout ids")
    groups: list[Hashable | None] = list(group_ids)
    unidentified = [i for i, group in enumerate(groups) if group is None]
    if unidentified:
        if len(unidentified) < len(groups):
            raise ValueError(f"samples at {unidentified[:5]} have no group id while others do")
        if not group_size or len(groups) % group_size:
            raise ValueError(f"{len(groups)} samples without group ids do not divide into groups of {group_size}")
        groups = [i // group_size for i in range(len(groups))]

    members: dict[Hashable, dict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, (group, rollout) in enumerate(zip(groups, rollout_ids, strict=True)):
        members[group][rollout].append(i)
    result = [0.0] * len(rewards)
    for rollouts in members.values():
        if len(rollouts) == 1:
            continue
        observed = [sum(rewards[i] for i in siblings) / len(siblings) for siblings in rollouts.values()]
        mean = math.fsum(observed) / len(observed)
        spread = math.fsum((one - mean) ** 2 for one in observed) / (len(observed) - 1)
        scale = math.sqrt(spread) + _EPSILON if divide_by_std else 1.0
        for siblings in rollouts.values():
            for i in siblings:
                result[i] = (rewards[i] - mean) / scale
    return result


def whiten(values: torch.Tensor, masks: torch.Tensor, sums: torch.Tensor | None = None) -> torch.Tensor:
    """Zero mean and unit variance over kept tokens (unbiased variance), as used by REINFORCE++ and PPO.

    `sums` [3] = (count, sum, sum of squares) over all ranks, from `moments` of each rank added up; default: these
    values alone. Fewer than two kept tokens leave the values centred only.
    """
    count, total, squares = (moments(values, masks) if sums is None else sums).tolist()
    mean = total / max(count, 1.0)
    spread = squares - count * mean * mean
    # What rounding alone leaves of equal values is not a variance.
    variance = (
        spread / (count - 1.0) if count > 1 and spread > count * torch.finfo(torch.float64).eps * squares else 0.0
    )
    return (values - mean) / (variance**0.5 + _EPSILON if count > 1 else 1.0)


def moments(values: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """(count, sum, sum of squares) of kept values, fp64 [3]; these add over ranks, also over one with no token."""
    kept = torch.where(masks != 0, values, torch.zeros_like(values)).double()
    return torch.stack((masks.double().sum(), kept.sum(), kept.square().sum()))
