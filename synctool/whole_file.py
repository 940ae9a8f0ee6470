"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from synctool.errors import UsageError


@contextmanager
def whole_file(path: Path, mode: int = 0o644, prefix: str | None = None) -> Iterator[BinaryIO]:
    """A stream whose content becomes ``path``, with these permissions, at the end; after an error ``path`` is as it was.

    The temporary file lies beside it and is this call's alone. ``prefix`` is how its name begins, where someone cleans up by that.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix or f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes | str, mode: int = 0o644) -> None:
    """Replace a file in one step; text as UTF-8, line ends as they are. Folders above it are made.

    Raises:
        UsageError: the path leads through a file, or is a folder.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, mode) as stream:
            stream.write(data.encode() if isinstance(data, str) else data)
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(
            f"can't be written: {error.strerror}", where=str(path), hint="name a file in a folder"
        ) from None
