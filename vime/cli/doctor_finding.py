"""One thing that `vime doctor` found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`level`: "ok", "warn" (a run may work) or "bad" (it will not)."""

    check: str
    level: str
    found: str
    hint: str = ""
