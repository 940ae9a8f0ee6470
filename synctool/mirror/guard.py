"""What may be written into downstream's tree: no hostile path, no link out of the tree, no new submodule, nothing that can't stand beside what is there."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import PurePosixPath

from synctool.errors import Refused
from synctool.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry, Tree, check_path, is_git_folder, link_end
from synctool.mirror.sides import Sides, Version


def refusal(sides: Sides, version: Version, ours: Entry | None) -> str | None:
    """Why an upstream file is not let in, or None. What downstream has of that kind already may change."""
    try:
        check_path(version.path)
    except Refused as error:
        return error.title
    if version.mode not in (FILE, EXECUTABLE, SYMLINK, SUBMODULE):
        return f"mode {version.mode} is not one that git writes"
    if version.mode == SUBMODULE and (ours is None or ours.mode != SUBMODULE):
        return "submodules are not taken over: add it by hand if it is wanted"
    if version.mode == SYMLINK:
        target = (sides.content(version) or b"").decode("utf-8", "surrogateescape")
        if leaves_tree(version.path, target):
            return f"the link leads out of the tree, to {target!r}"
    return None


#: Drivers that git has itself; every other name is a program of the user's configuration.
_BUILT_IN = frozenset((
    "ada", "bash", "bibtex", "cpp", "csharp", "css", "dts", "elixir", "fortran", "fountain", "golang", "html", "java", "kotlin", "markdown", "matlab",
    "objc", "pascal", "perl", "php", "python", "ruby", "rust", "scheme", "tex", "text", "binary", "union",
))  # fmt: skip


def programs(attributes: bytes) -> set[str]:
    """Drivers that a ``.gitattributes`` asks for and that git does not have itself, as ``filter=lfs`` (gitattributes(5)).

    Upstream can't bring such a program along, but it can point the user's own at files: git runs it at the next checkout or diff. This tool never does.
    """
    lines = attributes.decode("utf-8", "replace").splitlines()
    found = [
        re.findall(r"(?<=\s)(filter|diff|merge)=(\S+)", line) for line in lines if not line.lstrip().startswith("#")
    ]
    return {f"{kind}={name}" for pairs in found for kind, name in pairs if kind == "filter" or name not in _BUILT_IN}


def leaves_tree(path: str, target: str) -> bool:
    """Whether a symbolic link at ``path`` leads out of the tree, or into git's own folder."""
    end = link_end(path, target)
    return end is None or any(map(is_git_folder, end.split("/")))


class Neighbours:
    """Whether a new path can stand beside the others, on file systems that ignore case too."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @cached_property
    def _folded(self) -> dict[str, str]:
        """Case-folded path -> path, for files and folders."""
        known: dict[str, str] = {}
        for path, _ in self._tree.items():
            self._note(known, path)
        return known

    @staticmethod
    def _note(known: dict[str, str], path: str) -> None:
        known.setdefault(path.casefold(), path)
        for folder in PurePosixPath(path).parents:
            name = str(folder)
            if name == "." or name.casefold() in known:
                break
            known[name.casefold()] = name

    def added(self, path: str) -> None:
        """Tell that a path came in."""
        if "_folded" in self.__dict__:
            self._note(self._folded, path)

    def removed(self, path: str) -> None:
        """Tell that a path went away."""
        if "_folded" in self.__dict__ and self._folded.get(path.casefold()) == path:
            del self._folded[path.casefold()]

    def collision(self, path: str) -> str | None:
        """What stands in the way of a new file, or None."""
        if self._tree.is_folder(path):
            return f"a folder stands at {path}"
        for folder in PurePosixPath(path).parents:
            if str(folder) != "." and self._tree.get(str(folder)) is not None:
                return f"a file stands at {folder}"
        for name in (path, *(str(folder) for folder in PurePosixPath(path).parents)):
            other = self._folded.get(name.casefold()) if name != "." else None
            if other is not None and other != name:
                if self._tree.get(other) is None and not self._tree.is_folder(other):
                    continue
                return f"{other} differs from it by case only"
        return None
