"""Where the engine's source is read from: a git tree or an unpacked folder."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Protocol

from synctool.errors import UsageError
from synctool.git.tree import SUBMODULE, SYMLINK, Tree


class EngineSource(Protocol):
    """Paths and contents of the engine's source. ``key`` changes whenever any of them may have changed."""

    key: str

    @property
    def paths(self) -> frozenset[str]:
        """Every file's path."""

    def read(self, path: str) -> bytes:
        """A file's content."""

    def read_many(self, paths: list[str]) -> dict[str, bytes]:
        """Many files' contents."""


class TreeSource:
    """The source as a git tree, such as the pinned and patched one."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.key = tree.write()

    @cached_property
    def _entries(self) -> dict[str, str]:
        return {path: entry.oid for path, entry in self._tree.items() if entry.mode not in (SYMLINK, SUBMODULE)}

    @property
    def paths(self) -> frozenset[str]:
        """Every file's path."""
        return frozenset(self._entries)

    def read(self, path: str) -> bytes:
        """A file's content."""
        return self._tree.store.read(self._entries[path], "blob")

    def read_many(self, paths: list[str]) -> dict[str, bytes]:
        """Many files' contents, in one conversation with git."""
        blobs = self._tree.store.read_many(self._entries[path] for path in paths)
        return {path: blobs.get(self._entries[path], b"") for path in paths}


class FolderSource:
    """The source as an unpacked folder. Its key is made of names, sizes and times of change: contents are not read for it."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UsageError("no such folder", where=str(folder), hint="--pin takes an unpacked source of the engine")
        self._folder = folder
        state = hashlib.sha256(str(folder.resolve()).encode())
        found = set()
        for top, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if name != ".git")
            for name in sorted(names):
                path = Path(top, name)
                status = path.lstat()
                relative = path.relative_to(folder).as_posix()
                state.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
                if not path.is_symlink():
                    found.add(relative)
        self._paths = frozenset(found)
        self.key = state.hexdigest()

    @property
    def paths(self) -> frozenset[str]:
        """Every file's path."""
        return self._paths

    def read(self, path: str) -> bytes:
        """A file's content."""
        return (self._folder / path).read_bytes()

    def read_many(self, paths: list[str]) -> dict[str, bytes]:
        """Many files' contents."""
        return {path: self.read(path) for path in paths}
