"""Figures of a step that follow from others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def waits(metrics: Mapping[str, Any]) -> dict[str, float]:
    """How long the trainer waited in a step, and its share of it: everything that was not training."""
    step, train = metrics.get("perf/step_time"), metrics.get("perf/actor_train_wall_time")
    if not step or train is None:
        return {}
    waited = max(step - train, 0.0)
    return {"perf/train_wait_time": waited, "perf/wait_time_ratio": waited / step}
