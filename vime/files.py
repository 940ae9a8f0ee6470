"""Files that are there whole or not at all, and files of JSON lines that grow."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from vime.errors import UsageError

#: Files of this host's memory.
SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def whole_file(path: Path, *, synced: bool = False) -> Iterator[BinaryIO]:
    """A stream whose content becomes `path` at the end; after an error `path` is as it was. `synced`: on the disk before it has its name, and then
    the name too."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            yield stream
            if synced:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if synced:
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def asked_file(path: Path, like: Path | None = None) -> Iterator[BinaryIO]:
    """`whole_file` for a path that a user named, with the permissions of `like`. Raises UsageError when it cannot be written."""
    try:
        with whole_file(path) as stream:
            yield stream
            if like is not None:
                os.fchmod(stream.fileno(), like.stat().st_mode & 0o777)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror or error}", where=str(path)) from error


def open_lines(path: Path) -> TextIO:
    """A file of lines, to append to. Half a line at its end, which a killed process left, is cut off: the next one would be joined to it."""
    file = open(path, "a+b")  # noqa: SIM115 - the caller's to close
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
    return io.TextIOWrapper(file, encoding="utf-8")


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add `record` to a file of JSON lines. What JSON does not know is written as its text."""
    with open_lines(path) as file:
        file.write(json.dumps(record, default=str) + "\n")
