"""How evaluation of the toy scores an answer. Training uses ``--rm-type reverse_word``, which also pays for single letters."""

from __future__ import annotations

from argparse import Namespace
from typing import Any


async def exact(args: Namespace, sample: Any) -> float:
    """1 for the whole right answer, else 0."""
    return float(sample.response == sample.label)
