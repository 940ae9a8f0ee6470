"""``pin.toml``: which release a stack applies to, by hash, and where it can be had."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from synctool.errors import ConfigError
from synctool.patches.pathpolicy import Allowed
from synctool.textfile import read_text

_SHA256 = r"^[0-9a-f]{64}$"
_OID = r"^(?:[0-9a-f]{40}|[0-9a-f]{64})$"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Archive(_Part):
    """The source distribution: file name, SHA-256, size in bytes, number of files, and the git tree of its content (top folder stripped)."""

    name: str = Field(pattern=r"^[A-Za-z0-9._+-]+\.(?:tar\.gz|tgz|tar\.bz2|tar\.xz)$")
    sha256: str = Field(pattern=_SHA256)
    size: int = Field(gt=0)
    files: int = Field(gt=0)
    tree: str = Field(pattern=_OID)


class GitSource(_Part):
    """The release in git. ``commit`` may be shortened; ``tree`` makes the check independent of the server."""

    url: str
    tag: str | None = None
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{7,64}$")
    tree: str | None = Field(default=None, pattern=_OID)


class Allow(_Part):
    """Paths excepted from the patch path policy."""

    symlinks: list[str] = []
    executables: list[str] = []
    git_files: list[str] = []


class Pin(_Part):
    """A pinned release of ``package`` (index name), whose importable folder is ``import_name``."""

    schema_: Literal[1] = Field(alias="schema")
    package: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(pattern=r"^[0-9][0-9A-Za-z.+-]*$")
    import_name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    archive: Archive
    git: GitSource | None = None
    allow: Allow = Allow()

    @property
    def allowed(self) -> Allowed:
        """The exceptions as the path policy takes them."""
        return Allowed(
            frozenset(self.allow.symlinks), frozenset(self.allow.executables), frozenset(self.allow.git_files)
        )

    @property
    def label(self) -> str:
        """``package version``."""
        return f"{self.package} {self.version}"


def load_pin(path: Path) -> Pin:
    """Read a pin.

    Raises:
        ConfigError: the file is missing, not TOML, or a field is missing, unknown or malformed; ``where`` names file and line.
    """
    if not os.path.lexists(path):
        raise ConfigError("no pin", where=str(path), hint="write one with 'vime-sync patch pin VERSION'")
    text = read_text(path, "pin").replace("\r\n", "\n")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise ConfigError(f"not TOML: {error}", where=f"{path}:{line[1] if line else 1}") from error
    return parse_pin(data, text, str(path))


def parse_pin(data: dict[str, Any], text: str, where: str) -> Pin:
    """A pin from parsed TOML; ``text`` serves to find the line of an error."""
    try:
        return Pin.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        keys = [str(key) for key in first["loc"] if isinstance(key, str)]
        problem = {"missing": "is missing", "extra_forbidden": "is not a field of a pin"}.get(
            first["type"], first["msg"]
        )
        raise ConfigError(f"{'.'.join(keys)}: {problem}", where=f"{where}:{_line_of(text, keys)}") from error


def _line_of(text: str, keys: list[str]) -> int:
    """The line of a dotted key, or of the nearest table that stands in the text."""
    best = 1
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[([\w.]+)\]", line)
        if head:
            table = head[1].split(".")
            if keys[: len(table)] == table:
                best = number
        name = re.match(r"\s*([\w-]+)\s*=", line)
        if name and [*table, name[1]] == keys:
            return number
    return best


def render_pin(pin: Pin) -> str:
    """The pin as TOML text."""
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment("The release that this patch stack applies to. Every part is checked on each use."))
    for key in ("schema_", "package", "version", "import_name"):
        document.add(key.rstrip("_"), getattr(pin, key))
    for key in ("archive", "git", "allow"):
        part = getattr(pin, key)
        if part is None or (key == "allow" and not any(part.model_dump().values())):
            continue
        table = tomlkit.table()
        for name, value in part.model_dump(exclude_none=True).items():
            table.add(name, value)
        document.add(tomlkit.nl())
        document.add(key, table)
    return tomlkit.dumps(document)
