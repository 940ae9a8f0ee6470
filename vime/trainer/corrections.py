"""Ready-made functions for --custom-tis-function-path, called as any user's own: see `vime.hooks`.

They take flat losses and per-sample lists and return (pg_loss, loss masks or None, metrics by token).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vime.trainer import mismatch

Result = tuple[torch.Tensor, list[torch.Tensor] | None, dict[str, torch.Tensor]]

#: Attributes of `args` (set them with --custom-config-path) and what they are when absent.
_MIS_DEFAULTS = {
    "mis_level": "token",
    "mis_mode": "truncate",
    "mis_low": 0.0,
    "mis_high": 2.0,
    "mis_reject_level": None,
    "mis_reject_low": 0.0,
    "mis_reject_high": float("inf"),
    "mis_veto": None,
    "mis_normalize": False,
}


def icepop(
    args: Any,
    *,
    pg_loss: torch.Tensor,
    train_log_probs: Sequence[torch.Tensor],
    rollout_log_probs: Sequence[torch.Tensor],
    loss_masks: Sequence[torch.Tensor],
    response_lengths: Sequence[int],
    **_: Any,
) -> Result:
    """IcePop: a token counts with its ratio while that is within [--tis-clip-low, --tis-clip], else not at all."""
    ratio = mismatch.ratios(
        torch.cat(list(train_log_probs)),
        torch.cat(list(rollout_log_probs)),
        torch.cat(list(loss_masks)),
        response_lengths,
        "token",
    )
    weight = mismatch.windowed(args.tis_clip_low, args.tis_clip)(ratio)
    return pg_loss * weight, None, {"tis": weight, "tis_clipfrac": (weight != ratio).to(ratio.dtype)}


def masked_importance_sampling(
    args: Any,
    *,
    pg_loss: torch.Tensor,
    train_log_probs: Sequence[torch.Tensor],
    rollout_log_probs: Sequence[torch.Tensor],
    loss_masks: Sequence[torch.Tensor],
    response_lengths: Sequence[int],
    **_: Any,
) -> Result:
    """`mismatch.correct` with the attributes mis_level, mis_mode, mis_low, mis_high, mis_reject_level, mis_reject_low,
    mis_reject_high, mis_veto and mis_normalize of `args`. Rejected tokens leave the numerator only."""
    options: dict[str, Any] = {
        name.removeprefix("mis_"): getattr(args, name, default) for name, default in _MIS_DEFAULTS.items()
    }
    masks = torch.cat(list(loss_masks))
    found = mismatch.correct(
        torch.cat(list(train_log_probs)), torch.cat(list(rollout_log_probs)), masks, response_lengths, **options
    )
    metrics = {"mis_weight": found.weights, "mis_ratio": found.ratios, "mis_rejected": 1 - found.keep}
    return pg_loss * found.weights, list((masks * found.keep).split(list(response_lengths))), metrics
