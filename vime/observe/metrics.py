"""The metrics file: one JSON object a line, appended as the run goes, readable at any time and after any crash."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vime.errors import DataError
from vime.files import open_lines

FILE = "metrics.jsonl"


class MetricsFile:
    """Records `{"kind", "rollout_id", "time", ...metrics}`. `kind`: "step" (rollout and training), "eval", "engine" (its patch stack), "run" (facts)."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._file = open_lines(self.path)

    def log(self, kind: str, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        record = {"kind": kind, "rollout_id": rollout_id, "time": round(time.time(), 3)} | dict(metrics)
        self._file.write(json.dumps({name: _plain(value) for name, value in record.items()}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(directory: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Records in the order of their step. A step that was done again after a resume counts once, as it was done last."""
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for record in read_lines(directory / FILE):
        if kind in (None, record["kind"]):
            latest[record["kind"], record["rollout_id"]] = record
    return sorted(latest.values(), key=lambda record: record["rollout_id"])


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines that is written while it is read; none when there is no file. Raises DataError for a whole line that is
    no JSON object."""
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):  # a killed run may leave half a line at the end
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DataError(f"the line is no JSON: {error}", where=f"{path}:{number}") from error
            if not isinstance(record, dict):
                raise DataError("the line holds no JSON object", where=f"{path}:{number}")
            yield record


def _plain(value: Any) -> Any:
    """JSON has no NaN; numbers of other libraries become Python's."""
    if isinstance(value, bool | str | int) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    number = float(value)
    return number if math.isfinite(number) else None
