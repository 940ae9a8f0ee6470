"""How a process of a benchmark hands its figures over: as one line of its output."""

from __future__ import annotations

import json
from typing import Any

_MARK = "RESULT "


def tell(result: dict[str, Any]) -> None:
    print(_MARK + json.dumps(result), flush=True)


def told(output: str) -> list[dict[str, Any]]:
    """All results in what processes printed."""
    return [json.loads(line.removeprefix(_MARK)) for line in output.splitlines() if line.startswith(_MARK)]
