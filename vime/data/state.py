"""State in torch's format, of containers and tensors alone: it is read without running code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vime.files import whole_file


def save_state(path: Path, state: Any) -> None:
    """Write `state` to `path`, whole and on the disk; folders are made."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, synced=True) as stream:
        torch.save(state, stream)


def portable(state: dict[str, Any]) -> dict[str, Any]:
    """Arrays as tensors, all else as it is."""
    return {name: portable_value(value) for name, value in state.items()}


def portable_value(value: Any) -> Any:
    """An array as a tensor, anything else as it is."""
    import numpy as np
    import torch

    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
