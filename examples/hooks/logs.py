"""Metrics of one's own."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from vime.sample import Sample


def count_digits(
    rollout_id: int, args: Namespace, samples: list[Sample], extra_metrics: dict[str, float], rollout_time: float
) -> bool:
    """--custom-rollout-log-function-path: adds a metric to ours."""
    digits = sum(character.isdigit() for sample in samples for character in sample.response)
    extra_metrics["rollout/digits_per_sample"] = digits / len(samples)
    return False


def best_answer(
    rollout_id: int, args: Namespace, data: dict[str, dict[str, Any]], extra_metrics: dict[str, float]
) -> bool:
    """--custom-eval-rollout-log-function-path: adds the best reward of each data set."""
    for name, entry in data.items():
        extra_metrics[f"eval/{name}/best"] = max(entry["rewards"])
    return False
