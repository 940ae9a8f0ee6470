"""What a patch may touch: checked on the parsed patch, before anything of it is applied.

Git itself accepts an absolute name (it lands inside the tree) and a symbolic link to anywhere, and GNU patch writes into ``.git``. Here paths
are plain relative files, and whatever else a patch legitimately needs is allowed by name in ``pin.toml``.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from synctool.errors import Refused
from synctool.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Tree, check_path, is_git_folder, link_end
from synctool.patches.filepatch import FilePatch, PatchText

#: Files that change how git treats other files.
_GIT_FILES = (".gitattributes", ".gitmodules", ".mailmap")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Exceptions by path, from ``[allow]`` of the pin."""

    symlinks: frozenset[str] = field(default_factory=frozenset)
    executables: frozenset[str] = field(default_factory=frozenset)
    git_files: frozenset[str] = field(default_factory=frozenset)


def check_patch(patch: PatchText, name: str, allowed: Allowed) -> None:
    """Refuse a patch that touches what it may not.

    Raises:
        Refused: an unsafe path, a submodule, a symbolic link, mode change or git control file not allowed by name, one path changed twice.
    """
    seen: set[str] = set()
    for change in patch.files:
        where = f"{name}:{change.at}"
        for path in change.paths:
            _check_name(path, where)
        # A move reads one path and writes another; two changes may not write (or delete) the same one.
        written = {change.new_path or change.path}
        if change.move != "copy" and change.old_path is not None:
            written.add(change.old_path)
        twice = written & seen
        if twice:
            raise Refused(
                f"{min(twice)!r} is changed twice in one patch",
                where=where,
                hint="join the changes: 'vime-sync patch refresh'",
            )
        seen |= written
        _check_modes(change, where, allowed)
        for path in change.paths:
            if posixpath.basename(path).lower() in _GIT_FILES and path not in allowed.git_files:
                raise Refused(
                    f"{path!r} controls git itself",
                    where=where,
                    hint="allow it by name: git_files in [allow] of pin.toml",
                )


def _check_name(path: str, where: str) -> None:
    try:
        check_path(path)
    except Refused as error:
        raise Refused(error.title, where=where, hint=error.hint) from error
    if "\\" in path or any(ord(c) < 0x20 or ord(c) == 0x7F for c in path):
        raise Refused(f"path {path!r} holds a backslash or a control character", where=where, hint="rename the file")
    if len(path.encode("utf-8", "surrogateescape")) > 4096:
        raise Refused("path is longer than 4096 bytes", where=where)


def _check_modes(change: FilePatch, where: str, allowed: Allowed) -> None:
    for mode in (change.old_mode, change.new_mode):
        if mode == SUBMODULE:
            raise Refused(f"{change.path!r} is a submodule", where=where, hint="a patch stack holds files only")
        if mode not in (None, FILE, EXECUTABLE, SYMLINK):
            raise Refused(f"{change.path!r} has mode {mode}, which is none of git's", where=where)
    if SYMLINK in (change.old_mode, change.new_mode) and change.path not in allowed.symlinks:
        raise Refused(
            f"{change.path!r} is a symbolic link", where=where, hint="allow it by name: symlinks in [allow] of pin.toml"
        )
    becomes = change.new_mode == EXECUTABLE and change.old_mode != EXECUTABLE
    ceases = change.old_mode == EXECUTABLE and change.new_mode == FILE
    if (becomes or ceases) and change.path not in allowed.executables:
        what = "becomes executable" if becomes else "stops being executable"
        raise Refused(
            f"{change.path!r} {what}", where=where, hint="allow it by name: executables in [allow] of pin.toml"
        )


def check_link_target(path: str, target: bytes, where: str) -> None:
    """Refuse a symbolic link whose target is absolute or leaves the tree.

    Raises:
        Refused: it does.
    """
    text = target.decode("utf-8", "surrogateescape")
    end = link_end(path, text)
    if end is None:
        raise Refused(f"symbolic link {path!r} leaves the tree: {text!r}", where=where)
    if any(is_git_folder(part) for part in end.split("/")):
        raise Refused(f"symbolic link {path!r} points into .git", where=where)


def check_place(tree: Tree, path: str, where: str) -> None:
    """Refuse to write ``path`` where a folder stands, or below something that is a file or a symbolic link.

    Raises:
        Refused: the place is taken.
    """
    if tree.is_folder(path):
        raise Refused(f"{path!r} is a folder", where=where)
    parent = posixpath.dirname(path)
    while parent:
        entry = tree.get(parent)
        if entry is not None:
            what = "symbolic link" if entry.mode == SYMLINK else "file"
            raise Refused(f"{path!r} lies below {parent!r}, which is a {what}", where=where)
        parent = posixpath.dirname(parent)
