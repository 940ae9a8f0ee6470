"""Reads what our own verbs print with ``--json``: the figures of ``patch verify`` or ``audit`` get into the record, and the reason of a refusal."""

from __future__ import annotations

import json
from typing import Any

#: The envelope of ``synctool.cli.report``.
SCHEMA = "vime-sync/1"


def read_envelope(output: str) -> tuple[dict[str, int], dict[str, str], str]:
    """``(figures, details, refusal)`` of the last JSON envelope in a command's output, all empty when there is none.

    Counts of ``data`` become figures: numbers as they are, lists by their length; one level of tables is entered (``gate files``). Texts become
    details. ``refusal`` is the reason of a verb that refused by a rule (``data.refusal``, as of ``image build``).
    """
    start = output.find("{")
    while start >= 0:
        try:
            value = json.JSONDecoder().raw_decode(output, start)[0]
        except ValueError:
            start = output.find("{", start + 1)
            continue
        if isinstance(value, dict) and value.get("schema") == SCHEMA and isinstance(value.get("data"), dict):
            refusal = value["data"].get("refusal")
            reason = str(refusal.get("reason", "")) if isinstance(refusal, dict) else ""
            return *_figures(value["data"]), reason
        start = output.find("\n{", start + 1)
    return {}, {}, ""


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
