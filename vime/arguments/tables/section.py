"""A titled run of options."""

from __future__ import annotations

from dataclasses import dataclass

from vime.arguments.option import Option


@dataclass(frozen=True)
class Section:
    title: str
    options: tuple[Option, ...]
