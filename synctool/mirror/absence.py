"""What a file that downstream lacks means: it was deleted here, it was never ported, or downstream moved it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import PurePosixPath

from synctool.errors import RepositoryError
from synctool.git.repo import Repo
from synctool.git.tree import SUBMODULE, SYMLINK, Tree
from synctool.mirror.sides import Sides, Version
from synctool.translate.translator import Translator

#: How alike a downstream commit must leave a file for its deletion and addition to count as a move.
_SIMILAR = "-M60%"
#: Lines that a file must have for equal content to say something.
_LEAST_LINES = 5


class Absence(StrEnum):
    """Why downstream lacks a file."""

    DELETED = "deleted"
    NEVER = "never ported"
    UNKNOWN = "unknown"


class DownstreamHistory:
    """What downstream once had, from the tree at which it forked and the deletions since."""

    def __init__(self, repo: Repo, ours: str, upstream: str, baseline: str | None, translator: Translator) -> None:
        self._repo, self._ours, self._upstream = repo, ours, upstream
        self._baseline, self._translator = baseline, translator

    @cached_property
    def fork(self) -> str | None:
        """The upstream commit that downstream began at: what both histories share, else the policy's baseline; None if neither is known here."""
        found = self._repo.run("merge-base", self._ours, self._upstream, check=False)
        if found.returncode == 0:
            return found.stdout.decode().split()[0]
        if self._baseline is not None:
            try:
                return self._repo.resolve(self._baseline)
            except RepositoryError:
                return None
        return None

    @cached_property
    def _fork_paths(self) -> frozenset[str]:
        """Downstream names of the files at the fork."""
        if self.fork is None:
            return frozenset()
        return frozenset(self._translator.path(path) for path, _ in self._repo.tree(self.fork).items())

    @cached_property
    def _log(self) -> tuple[frozenset[str], dict[str, str]]:
        """Every path that a downstream commit removed, whatever came later; and for every path that was moved, where it went in the end."""
        span = [self._ours] + ([f"^{self.fork}"] if self.fork else [])
        finished = self._repo.run(
            "log", "--reverse", "--format=", "--name-status", "-z", "--diff-filter=DR", _SIMILAR, "-l2000", *span, "--"
        )
        fields = iter(name.decode("utf-8", "surrogateescape") for name in finished.stdout.split(b"\0") if name)
        deleted: set[str] = set()
        origins: dict[str, set[str]] = {}
        for status in fields:
            old = next(fields)
            if status.startswith("D"):
                deleted.add(old)
                origins.pop(old, None)
            else:
                origins.setdefault(next(fields), set()).update(origins.pop(old, set()), (old,))
        return frozenset(deleted), {old: now for now, names in origins.items() for old in names}

    def moved_to(self, path: str, upstream_path: str) -> str | None:
        """Where downstream's own commits moved a file to, by either of its names."""
        moves = self._log[1]
        return moves.get(path) or moves.get(upstream_path)

    def why_absent(self, path: str, upstream_path: str) -> Absence:
        """Why a downstream path is missing. Both names count: a deletion may be older than the renaming of the tree."""
        if path in self._fork_paths or path in self._log[0] or upstream_path in self._log[0]:
            return Absence.DELETED
        if self.fork is None and self._repo.is_shallow:
            return Absence.UNKNOWN
        return Absence.NEVER

    @cached_property
    def _dropped_folders(self) -> frozenset[str]:
        """Folders (two levels deep or more) that had files at the fork and have none of them now."""
        ours = self._repo.tree(self._ours)
        alive: Counter[str] = Counter()
        for path in self._fork_paths:
            folder = str(PurePosixPath(path).parent)
            if "/" in folder:
                alive[folder] += path in ours
        return frozenset(folder for folder, count in alive.items() if count == 0)

    def dropped_folder(self, path: str) -> str | None:
        """The folder above a path that downstream emptied, or None."""
        return next((str(up) for up in PurePosixPath(path).parents if str(up) in self._dropped_folders), None)


class Twins:
    """Finds a file that downstream keeps under another name, unchanged: for histories that begin with an import and so show no moves."""

    def __init__(self, sides: Sides, translator: Translator, ours: Tree, upstream: Sequence[Tree]) -> None:
        self._sides, self._translator, self._ours, self._upstream = sides, translator, ours, upstream

    @cached_property
    def _strangers(self) -> dict[str, list[str]]:
        """Downstream's files that no upstream path maps to: blob id -> paths."""
        mapped = {self._translator.path(path) for tree in self._upstream for path, _ in tree.items()}
        found: dict[str, list[str]] = {}
        for path, entry in self._ours.items():
            if path not in mapped and entry.mode not in (SYMLINK, SUBMODULE):
                found.setdefault(entry.oid, []).append(path)
        return found

    def find(self, version: Version) -> str | None:
        """Downstream's path of the only file with exactly this translated content, or None. Very short files prove nothing."""
        content = self._sides.content(version) if version.mode not in (SYMLINK, SUBMODULE) else None
        if content is None or content.count(b"\n") < _LEAST_LINES:
            return None
        same = self._strangers.get(self._sides.oid(version), [])
        return same[0] if len(same) == 1 else None
