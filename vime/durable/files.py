"""Small JSON files that are there whole or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from vime.errors import DataError
from vime.files import whole_file


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None when there is no such file. Raises DataError when it holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"is no JSON: {error}", where=str(path)) from error
    if not isinstance(found, dict):
        raise DataError("holds no JSON object", where=str(path))
    return found


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Whole, and on the disk."""
    with whole_file(path, synced=True) as stream:
        stream.write(json.dumps(value, indent=2, sort_keys=True).encode())


def facts_of(path: Path) -> dict[str, Any]:
    """Size in bytes and sha256 of a file."""
    with open(path, "rb") as stream:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
