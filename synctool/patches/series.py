"""The ``series`` file: names of patches in order, one a line, ``#`` starts a comment. As quilt reads it, without its strip options other than -p1."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from synctool.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,126}\.(?:patch|diff)")


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """One listed patch and its 1-based line."""

    name: str
    line: int


def check_name(name: str, where: str) -> None:
    """Refuse a patch name that is not a plain file name.

    Raises:
        ConfigError: it has a slash, a blank, or no ``.patch`` or ``.diff`` ending.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a patch name",
            where=where,
            hint="letters, digits, '.', '_', '+', '-', ending in .patch or .diff",
        )


def parse_series(text: str, where: str) -> list[SeriesLine]:
    """The listed patches. An empty series is legal.

    Raises:
        ConfigError: a malformed name, an option other than ``-p1``, or a patch listed twice.
    """
    found: list[SeriesLine] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        at = f"{where}:{number}"
        if words[1:] not in ([], ["-p1"]):
            raise ConfigError(
                f"options {' '.join(words[1:])!r} are not supported", where=at, hint="patches are applied with -p1"
            )
        check_name(words[0], at)
        first = next((entry for entry in found if entry.name == words[0]), None)
        if first is not None:
            raise ConfigError(
                f"{words[0]} is listed twice, also on line {first.line}", where=at, hint="remove one of the lines"
            )
        found.append(SeriesLine(words[0], number))
    return found


def edit_series(text: str, *, add: str | None = None, after: str | None = None, remove: str | None = None) -> str:
    """The series with a patch added (at the end, or after another) or removed; comments and blank lines stay."""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()

    def index(name: str) -> int:
        return next(i for i, line in enumerate(lines) if line.split()[:1] == [name])

    if remove is not None:
        del lines[index(remove)]
    if add is not None:
        lines.insert(len(lines) if after is None else index(after) + 1, add)
    return "\n".join(lines) + "\n" if lines else ""


def unlisted(folder: Path, listed: list[SeriesLine]) -> list[str]:
    """Patch files of the folder that the series does not name."""
    names = {entry.name for entry in listed}
    return sorted(p.name for p in folder.iterdir() if p.suffix in (".patch", ".diff") and p.name not in names)
