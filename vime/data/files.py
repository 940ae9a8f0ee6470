"""Rows of jsonl and parquet files, with the numbers that people see in an editor, and slices of them by path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.errors import DataError

_SLICE = re.compile(r"^(?P<path>.*)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]$")


@dataclass(frozen=True)
class SlicedPath:
    """A file and the rows [start:stop] of it, as in Python."""

    path: str
    start: int | None = None
    stop: int | None = None

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Row:
    """`number` counts from 1: the line of a jsonl file, the record of a parquet file."""

    number: int
    values: dict[str, Any]


def split_slice(path: str) -> SlicedPath:
    """'prompts.jsonl@[10:-5]' -> its path and bounds. A path without a slice means all rows. Raises DataError for a malformed slice."""
    match = _SLICE.match(path)
    if match is None:
        if "@[" in path:
            raise DataError(
                "the slice of the path cannot be read",
                where=path,
                hint="FILE@[start:stop], whole numbers, negative ones count from the end",
            )
        return SlicedPath(path)
    return SlicedPath(match["path"], *(int(bound) if bound else None for bound in (match["start"], match["stop"])))


def read_rows(path: str) -> list[Row]:
    """The rows of a jsonl or parquet file, slice applied, order kept. Raises DataError naming file and line."""
    sliced = split_slice(path)
    suffix = Path(sliced.path).suffix
    if not Path(sliced.path).is_file():
        raise DataError("no such file", where=sliced.path)
    if suffix in (".jsonl", ".json"):
        rows = list(_jsonl(sliced.path))
    elif suffix == ".parquet":
        rows = _parquet(sliced.path)
    else:
        raise DataError(f"{suffix or 'a file without ending'} is neither jsonl nor parquet", where=sliced.path)
    if not rows:
        raise DataError("the file has no rows", where=sliced.path)
    chosen = rows[sliced.slice]
    if not chosen:
        raise DataError(f"the slice is empty: the file has {len(rows)} rows", where=path)
    return chosen


def _jsonl(path: str) -> Iterator[Row]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except ValueError as error:
                hint = "one JSON object a line; a file with one big array is not jsonl" if number == 1 else None
                raise DataError(f"not JSON: {error}", where=f"{path}:{number}", hint=hint) from error
            if not isinstance(values, dict):
                raise DataError(f"the line holds a {type(values).__name__}, not an object", where=f"{path}:{number}")
            yield Row(number, values)


def _parquet(path: str) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"not a parquet file: {error}", where=path) from error
    return [Row(number, values) for number, values in enumerate(table.to_pylist(), 1)]
