"""Columns between the rollout and the loss."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch

from vime.sample import Sample


def last_half_only(args: Namespace, samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """--custom-convert-samples-to-train-data-path: raw rewards, and only the second half of each answer is trained on."""
    masks = []
    for sample in samples:
        half = sample.response_length // 2
        masks.append([0] * half + sample.trained_mask[half:])
    return {
        "tokens": [list(sample.tokens) for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "loss_masks": masks,
        "rewards": [sample.get_reward_value(args) for sample in samples],
    }


def clip_advantages(args: Namespace, rollout_id: int, rollout_data: dict[str, list[Any]]) -> None:
    """--rollout-data-postprocess-path: no token weighs more than 2, whatever the group's deviation was."""
    rollout_data["advantages"] = [values.clamp(-2.0, 2.0) for values in rollout_data["advantages"]]


def early_tokens_first(args: Namespace, rollout_data: dict[str, list[Any]]) -> None:
    """--custom-advantage-function-path: the reward, fading by 1 % a token from the start of the answer."""
    rollout_data["advantages"] = [
        reward * 0.99 ** torch.arange(length, dtype=torch.float32)
        for reward, length in zip(rollout_data["rewards"], rollout_data["response_lengths"], strict=True)
    ]
