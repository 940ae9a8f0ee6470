"""Reads figures from what our own verbs print with ``--json``, so that ``patch verify`` or ``audit`` leave their counts in the record."""

from __future__ import annotations

import json
from typing import Any

#: The envelope of ``synctool.cli.report``.
SCHEMA = "vime-sync/1"


def read_envelope(output: str) -> tuple[dict[str, int], dict[str, str]]:
    """``(figures, details)`` of the last JSON envelope in a command's output, both empty when there is none.

    Counts of ``data`` become figures: numbers as they are, lists by their length; one level of tables is entered (``gate files``). Texts become
    details.
    """
    start = output.find("{")
    while start >= 0:
        try:
            value = json.JSONDecoder().raw_decode(output, start)[0]
        except ValueError:
            start = output.find("{", start + 1)
            continue
        if isinstance(value, dict) and value.get("schema") == SCHEMA and isinstance(value.get("data"), dict):
            return _figures(value["data"])
        start = output.find("\n{", start + 1)
    return {}, {}


def _figures(data: dict[str, Any]) -> tuple[dict[str, int], dict[str, str]]:
    figures: dict[str, int] = {}
    details: dict[str, str] = {}
    pairs = [(key, value) for key, value in data.items() if not isinstance(value, dict)]
    pairs += [(f"{k} {n}", v) for k, inner in data.items() if isinstance(inner, dict) for n, v in inner.items()]
    for key, value in pairs:
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int):
            figures[key] = value
        elif isinstance(value, list):
            figures[key] = len(value)
        elif isinstance(value, str) and value and len(value) <= 200:
            details[key] = value
    return figures, details
