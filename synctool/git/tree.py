"""A tree as a value: nested, read lazily, written back by changed folders only.

A change to one file of a 20,000-file tree reads and hashes as many tree objects as the path is deep. ``Tree`` is cheap to copy:
folders that were not touched are shared.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from synctool.errors import Refused
from synctool.git.objects import ObjectStore

FOLDER = "40000"
FILE = "100644"
EXECUTABLE = "100755"
SYMLINK = "120000"
SUBMODULE = "160000"


class Entry(NamedTuple):
    """One file of a tree: git mode as octal text (``100644``, ``100755``, ``120000``, ``160000``) and object id."""

    mode: str
    oid: str


class _Folder:
    """One level: either still only an object id, or loaded (name -> Entry or _Folder)."""

    __slots__ = ("entries", "oid")

    def __init__(self, oid: str | None, entries: dict[str, Entry | _Folder] | None = None) -> None:
        self.oid = oid
        self.entries = entries


def parse_tree(data: bytes, oid_bytes: int) -> Iterator[tuple[str, str, str]]:
    """``(mode, name, oid)`` of each entry of a raw tree object."""
    position = 0
    while position < len(data):
        space = data.index(b" ", position)
        end = data.index(b"\0", space)
        mode = data[position:space].decode()
        name = data[space + 1 : end].decode("utf-8", "surrogateescape")
        position = end + 1 + oid_bytes
        yield mode, name, data[end + 1 : position].hex()


#: Characters that HFS+ ignores in names (git's ``core.protectHFS``).
_HFS_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])


def is_git_folder(part: str) -> bool:
    """Whether some file system takes a path component for ``.git``: in any case, with ignored characters, trailing dots, or an NTFS stream."""
    plain = part.translate(_HFS_IGNORED).lower()
    return plain.partition(":")[0].rstrip(". ") in (".git", "git~1")


def link_end(path: str, target: str) -> str | None:
    """The path that a symbolic link at ``path`` leads to, or None where that is not in the tree."""
    end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    outside = not target or target.startswith("/") or "\0" in target or end == ".." or end.startswith("../")
    return None if outside else end


def check_path(path: str) -> None:
    """Refuse a path that could leave the tree or reach into git's own folder, on any file system.

    Raises:
        Refused: the path is absolute, empty, has ``.``, ``..`` or ``.git`` (see ``is_git_folder``) between slashes or backslashes, or a NUL.
    """
    for part in path.split("/"):
        pieces = part.split("\\")
        if part == "" or "\0" in part or any(piece in (".", "..") or is_git_folder(piece) for piece in pieces):
            raise Refused(
                f"path {path!r} is not allowed in a tree",
                hint="paths must be relative, without '.', '..' or '.git' parts",
            )


class Tree:
    """A mutable view of a tree object. ``copy()`` before changing what others hold."""

    def __init__(self, store: ObjectStore, oid: str | None = None, *, _root: _Folder | None = None) -> None:
        self.store = store
        self._root = _root if _root is not None else _Folder(oid, None if oid else {})

    def copy(self) -> Tree:
        """An independent tree that shares all untouched folders. Cost: the loaded folders."""

        def clone(folder: _Folder) -> _Folder:
            if folder.entries is None or folder.oid is not None:
                return folder  # clean folders are never changed in place (see _open)
            return _Folder(
                None, {name: clone(e) if isinstance(e, _Folder) else e for name, e in folder.entries.items()}
            )

        return Tree(self.store, _root=clone(self._root))

    def _load(self, folder: _Folder) -> dict[str, Entry | _Folder]:
        if folder.entries is None:
            assert folder.oid is not None
            data = self.store.read(folder.oid, "tree")
            size = 20 if self.store.algorithm == "sha1" else 32
            folder.entries = {
                name: _Folder(oid) if mode == FOLDER else Entry(mode, oid) for mode, name, oid in parse_tree(data, size)
            }
        return folder.entries

    def get(self, path: str) -> Entry | None:
        """The entry of a file, symlink or submodule, or None."""
        folder = self._root
        *parents, name = path.split("/")
        for part in parents:
            child = self._load(folder).get(part)
            if not isinstance(child, _Folder):
                return None
            folder = child
        found = self._load(folder).get(name)
        return found if isinstance(found, Entry) else None

    def __contains__(self, path: str) -> bool:
        return self.get(path) is not None

    def is_folder(self, path: str) -> bool:
        """Whether the path names a folder."""
        folder = self._root
        for part in path.split("/"):
            child = self._load(folder).get(part)
            if not isinstance(child, _Folder):
                return False
            folder = child
        return True

    def _open(self, folder: _Folder, name: str, create: bool) -> _Folder | None:
        """A private, changeable copy of the named child folder."""
        entries = self._load(folder)
        child = entries.get(name)
        if not isinstance(child, _Folder):
            if not create:
                return None
            fresh = _Folder(None, {})
        elif child.oid is None:
            return child
        else:
            fresh = _Folder(None, dict(self._load(child)))
        entries[name] = fresh
        return fresh

    def _make_root_private(self) -> _Folder:
        if self._root.oid is not None:
            self._root = _Folder(None, dict(self._load(self._root)))
        return self._root

    def set(self, path: str, entry: Entry) -> None:
        """Add or replace a file. A file in the way of a folder (or the other way round) is replaced.

        Raises:
            Refused: the path is not allowed (see ``check_path``).
        """
        check_path(path)
        folder = self._make_root_private()
        *parents, name = path.split("/")
        for part in parents:
            opened = self._open(folder, part, create=True)
            assert opened is not None
            folder = opened
        self._load(folder)[name] = entry

    def delete(self, path: str) -> bool:
        """Remove a file; folders that become empty go too. Returns whether it was there."""
        if path not in self:
            return False
        folder = self._make_root_private()
        *parents, name = path.split("/")
        chain = [folder]
        for part in parents:
            opened = self._open(folder, part, create=False)
            assert opened is not None
            folder = opened
            chain.append(folder)
        del self._load(folder)[name]
        for parent, child_name in zip(reversed(chain[:-1]), reversed(parents), strict=True):
            child = self._load(parent)[child_name]
            if isinstance(child, _Folder) and not self._load(child):
                del self._load(parent)[child_name]
        return True

    def items(self, prefix: str = "") -> Iterator[tuple[str, Entry]]:
        """All files below ``prefix`` (a folder path or empty), in git order of names."""
        folder = self._root
        for part in prefix.split("/") if prefix else ():
            child = self._load(folder).get(part)
            if not isinstance(child, _Folder):
                return
            folder = child
        yield from self._walk(folder, prefix)

    def _walk(self, folder: _Folder, prefix: str) -> Iterator[tuple[str, Entry]]:
        for name, entry in self._load(folder).items():
            path = f"{prefix}/{name}" if prefix else name
            if isinstance(entry, _Folder):
                yield from self._walk(entry, path)
            else:
                yield path, entry

    def write(self) -> str:
        """Write changed folders and return the tree's id."""
        return self._write(self._root)

    def _write(self, folder: _Folder) -> str:
        if folder.oid is not None:
            return folder.oid
        assert folder.entries is not None
        rows: list[tuple[bytes, bytes]] = []
        for name, entry in folder.entries.items():
            raw = name.encode("utf-8", "surrogateescape")
            if isinstance(entry, _Folder):
                # git sorts a folder as if its name ended in a slash
                rows.append((raw + b"/", b"40000 " + raw + b"\0" + bytes.fromhex(self._write(entry))))
            else:
                rows.append((raw, entry.mode.encode() + b" " + raw + b"\0" + bytes.fromhex(entry.oid)))
        folder.oid = self.store.write("tree", b"".join(row for _, row in sorted(rows)))
        return folder.oid
