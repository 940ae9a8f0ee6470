"""How long work tells how far it is. Pure functions take a ``Progress`` and default to ``silent``; the terminal rim makes the real ones."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told how far a long piece of work is."""

    def __call__(self, done: int, total: int, what: str = "") -> None: ...


def silent(done: int, total: int, what: str = "") -> None:
    """Progress that shows nothing."""
