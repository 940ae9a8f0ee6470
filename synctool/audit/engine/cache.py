"""Opens an engine's index, from the user's cache when the source is the same as then."""

from __future__ import annotations

import re
from pathlib import Path

from synctool.audit.engine.index import FORMAT, EngineIndex, build_index, dump, load
from synctool.audit.engine.source import EngineSource
from synctool.errors import UsageError
from synctool.patches.store import cache_folder
from synctool.whole_file import write_whole


def open_index(
    source: EngineSource, package: str, *, label: str | None = None, folder: Path | None = None
) -> EngineIndex:
    """The index of a source. ``folder`` is where indexes are kept, by default in the user's cache.

    Raises:
        UsageError: the source does not hold the package.
    """
    if not any(path.startswith(f"{package}/") and path.endswith(".py") for path in source.paths):
        raise UsageError(
            f"the pinned source has no package '{package}'", hint="name the engine's package with --engine"
        )
    label = label or f"{package} {_version(source)}".strip()
    path = _file(source, package, folder)
    if path.is_file():
        found = load(path.read_bytes(), source, package, label)
        if found is not None:
            return found
    return build_index(source, package, label)


def keep_index(index: EngineIndex, folder: Path | None = None) -> None:
    """Write an index that was built or grew."""
    if index.grown:
        write_whole(_file(index.source, index.package, folder), dump(index))
        index.grown = False


def _file(source: EngineSource, package: str, folder: Path | None) -> Path:
    return (folder or cache_folder() / "engines") / f"{source.key}-{package}-{FORMAT}.json"


def _version(source: EngineSource) -> str:
    if "PKG-INFO" not in source.paths:
        return ""
    found = re.search(r"^Version: (\S+)$", source.read("PKG-INFO").decode(errors="replace"), re.MULTILINE)
    return found[1] if found else ""
