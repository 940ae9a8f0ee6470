"""Means of a step's columns over what is trained: what was rewarded, how probable it was, how far from the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vime.trainer.batching import flatten

#: Column -> its name in metrics. Those with a value a response token.
_BY_TOKEN = {
    "advantages": "advantages",
    "returns": "returns",
    "values": "values",
    "old_log_probs": "log_probs",
    "ref_log_probs": "ref_log_probs",
    "rollout_log_probs": "rollout_log_probs",
}


def column_means(
    data: dict[str, list[Any]], sum_over_ranks: Callable[[dict[str, float]], dict[str, float]]
) -> dict[str, float]:
    """rollout/<name>: means over the kept tokens of all ranks (``rewards``: over samples), by count, so that ranks may hold any number of samples.

    ``rollout/kl`` is the mean of old minus reference log-probability. Columns that a sample lacks are left out. `sum_over_ranks` is a collective.
    """
    sums: dict[str, float] = {}
    kept = flatten(data["loss_masks"], range(len(data["loss_masks"])))
    for column, name in _BY_TOKEN.items():
        values = data.get(column)
        if values and all(
            one is not None and len(one) == len(mask) for one, mask in zip(values, data["loss_masks"], strict=True)
        ):
            flat = flatten(values, range(len(values))).cpu()
            # What is masked may be anything, also no number.
            sums[name] = torch.where(kept != 0, flat * kept, torch.zeros_like(flat)).sum().item()
            sums[f"{name}:count"] = kept.sum().item()
    if "log_probs" in sums and "ref_log_probs" in sums:
        sums["kl"] = sums["log_probs"] - sums["ref_log_probs"]
        sums["kl:count"] = sums["log_probs:count"]
    if rewards := data.get("rewards"):
        sums["rewards"], sums["rewards:count"] = float(sum(rewards)), float(len(rewards))
    total = sum_over_ranks(sums)
    return {
        f"rollout/{name}": value / max(total[f"{name}:count"], 1.0) for name, value in total.items() if ":" not in name
    }
