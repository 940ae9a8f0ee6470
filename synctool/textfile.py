"""Reads a text file that a person wrote: each way in which it can be no text becomes one line."""

from __future__ import annotations

from pathlib import Path

from synctool.errors import ConfigError


def read_text(path: Path, what: str, shown: str | None = None) -> str:
    """The file's text, line ends as they are, without a byte order mark. ``what`` names it in messages ("policy"), ``shown`` is its path there.

    Raises:
        ConfigError: it is no plain file (reading a pipe would block for ever), can't be read, or is not UTF-8; ``where`` is the file, with the line
            for the last.
    """
    where = shown or str(path)
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"the {what} is no plain file", where=where, hint="write it as a file of text")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"can't read the {what}: {error.strerror}", where=where, hint="check the path and its permissions"
        ) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"the {what} is not UTF-8", where=f"{where}:{line}", hint="save the file as UTF-8") from None
