"""How far results are from their references: the largest difference of each test that says so, written where $VIME_FIGURES names a file.

The table of algorithms in the documentation is made from that file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

_largest: dict[str, dict[str, float]] = {}


def note(entry: str, what: str, own: Any, expected: Any) -> None:
    """Keep the largest |own - expected| of `what`, part of `entry` (C1 to C14)."""
    difference = torch.as_tensor(own, dtype=torch.float64) - torch.as_tensor(expected, dtype=torch.float64)
    found = _largest.setdefault(entry, {})
    found[what] = max(found.get(what, 0.0), float(difference.detach().abs().max()) if difference.numel() else 0.0)


def write() -> None:
    """Add what was noted to the file, which other runs of other tests may have begun."""
    if not (name := os.environ.get("VIME_FIGURES")) or not _largest:
        return
    path = Path(name)
    known = json.loads(path.read_text()) if path.exists() else {}
    for entry, found in _largest.items():
        known[entry] = known.get(entry, {}) | {what: float(f"{value:.2g}") for what, value in found.items()}
    ordered = sorted(known.items(), key=lambda item: int(item[0][1:]))
    path.write_text(json.dumps({entry: dict(sorted(found.items())) for entry, found in ordered}, indent=1) + "\n")
