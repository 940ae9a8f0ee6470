"""What a file that downstream lacks means: it was deleted here, it was never ported, or downstream moved it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import PurePosixPath

from synctool.errors import RepositoryError
from synctool.git.repo import Repo
from synctool.git.tree import FILE, SUBMODULE, SYMLINK, Entry, Tree
from synctool.mirror.pieces import lines_of
from synctool.mirror.sides import Sides, Version
from synctool.translate.translator import Translator

#: A moved file keeps at least this share of its lines, and leads the next one by so much: scripts beside one another share most of their lines.
_ALIKE = 0.8
_LEAD = 0.1
#: Files compared line by line for one missing file, at most; and lines a file must have for that.
_MOST_COMPARED = 400
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
    def _deleted(self) -> frozenset[str]:
        """Every path that a downstream commit removed, whatever came later."""
        span = [self._ours] + ([f"^{self.fork}"] if self.fork else [])
        finished = self._repo.run(
            "log", "--format=", "--name-only", "-z", "--diff-filter=D", "--no-renames", *span, "--"
        )
        return frozenset(name.decode("utf-8", "surrogateescape") for name in finished.stdout.split(b"\0") if name)

    def why_absent(self, path: str, upstream_path: str) -> Absence:
        """Why a downstream path is missing. Both names count: a deletion may be older than the renaming of the tree."""
        if path in self._fork_paths or path in self._deleted or upstream_path in self._deleted:
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


class Moves:
    """Finds where downstream moved a file to: by equal content first, then by the lines it kept."""

    def __init__(self, sides: Sides, translator: Translator, ours: Tree, upstream: Sequence[Tree]) -> None:
        self._sides, self._translator, self._ours, self._upstream = sides, translator, ours, upstream
        self._found: dict[str, str | None] = {}
        self._lines: dict[str, Counter[bytes]] = {}

    @cached_property
    def _strangers(self) -> dict[str, str]:
        """Downstream's files that no upstream path maps to: path -> blob id."""
        mapped = {self._translator.path(path) for tree in self._upstream for path, _ in tree.items()}
        return {
            path: entry.oid
            for path, entry in self._ours.items()
            if path not in mapped and entry.mode not in (SYMLINK, SUBMODULE)
        }

    def find(self, version: Version) -> str | None:
        """Downstream's path for the upstream file that would be at ``version.path``, or None."""
        if version.path not in self._found:
            self._found[version.path] = self._find(version)
        return self._found[version.path]

    def _find(self, version: Version) -> str | None:
        if version.mode in (SYMLINK, SUBMODULE):
            return None
        content = self._sides.content(version)
        if content is None or len(lines_of(content)) < _LEAST_LINES:
            return None
        wanted = self._sides.oid(version)
        same = [path for path, oid in self._strangers.items() if oid == wanted]
        if len(same) == 1:
            return same[0]
        lines = Counter(lines_of(content))
        ranked = sorted(
            ((_alike(lines, self._counted(oid)), path) for path, oid in self._near(version.path)), reverse=True
        )
        if not ranked or ranked[0][0] < _ALIKE or (len(ranked) > 1 and ranked[0][0] - ranked[1][0] < _LEAD):
            return None
        return ranked[0][1]

    def _near(self, path: str) -> Iterable[tuple[str, str]]:
        """Strangers with the same suffix, those of the same name first."""
        name, suffix = PurePosixPath(path).name, PurePosixPath(path).suffix
        found = [item for item in self._strangers.items() if PurePosixPath(item[0]).suffix == suffix]
        found.sort(key=lambda item: (PurePosixPath(item[0]).name != name, item[0]))
        return found[:_MOST_COMPARED]

    def _counted(self, oid: str) -> Counter[bytes]:
        if oid not in self._lines:
            self._lines[oid] = Counter(lines_of(self._sides.raw(Entry(FILE, oid)) or b""))
        return self._lines[oid]


def _alike(one: Counter[bytes], other: Counter[bytes]) -> float:
    """The share of lines that two files have in common, 0 to 1."""
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 0.0
