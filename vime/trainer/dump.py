"""What a rollout was trained with, on disk (--save-debug-train-data): the columns of all data ranks, with what training added to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vime.data.state import portable_value, save_state
from vime.trainer import parallel
from vime.trainer.batching import TrainData

_FORMAT = 1
#: What the engine recorded is large, and is in the rollout's own archive (--save-debug-rollout-data).
_LEFT_OUT = ("supports", "routes")


def save(template: str, rollout_id: int, data: TrainData) -> None:
    """Write {"format", "rollout_id", "columns": {name: an entry a sample}} to `template` with {rollout_id} filled in; collective.

    Samples of all data ranks, by their index; per-token columns span the whole response, however the context was cut. The file
    holds containers, numbers, text and tensors, so `torch.load(..., weights_only=True)` reads it.
    """
    group = parallel.data_group()
    first = dist.get_global_rank(group, 0)
    if first != 0:
        return  # other tensor, context and pipeline ranks hold the same columns
    own = {name: [_on_host(one) for one in column] for name, column in data.items() if name not in _LEFT_OUT}
    parts: list[TrainData] | None = [{}] * group.size() if dist.get_rank() == 0 else None
    dist.gather_object(own, parts, dst=first, group=group)
    if parts is None:
        return
    columns = {name: [one for part in parts for one in part[name]] for name in own}
    order = sorted(range(len(columns["sample_indices"])), key=columns["sample_indices"].__getitem__)
    columns = {name: [column[i] for i in order] for name, column in columns.items()}
    save_state(
        Path(template.format(rollout_id=rollout_id)), {"format": _FORMAT, "rollout_id": rollout_id, "columns": columns}
    )


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else portable_value(value)
