"""What commits edit, as values: the changed paths of many commits in one git process, their hunks in another and only for those asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from synctool.git.diff import PathChange, commit_diffs, pairs_input
from synctool.git.repo import Repo

#: Similarity in percent from which a deleted and an added file count as one that moved: git's own default.
RENAME_PERCENT = 50
_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@[^\n]*\n", re.MULTILINE)
_SECTION = re.compile(rb"^(?:diff --git |(?:[0-9a-f]{40}|[0-9a-f]{64})$)", re.MULTILINE)
_BINARY = re.compile(rb"^(?:Binary files |GIT binary patch)", re.MULTILINE)

Pair = tuple[str, str]


class Hunk(NamedTuple):
    """One edit without context. ``old_at`` and ``new_at`` are the 0-based first line on each side; lines keep their newline."""

    old_at: int
    new_at: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


class FilePatch(NamedTuple):
    """One path that a commit touches. ``binary`` files, pure renames and mode changes have no hunks."""

    change: PathChange
    hunks: tuple[Hunk, ...]
    binary: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal edits, wherever in the file: hunks without their places, or the blobs of a binary file."""
        if self.binary:
            return (self.change.path, self.change.old_oid, self.change.oid)
        kind = self.change.status if self.change.status in "ADR" else "M"
        return (self.change.path, kind, tuple((_squeeze(h.removed), _squeeze(h.added)) for h in self.hunks))


def _squeeze(lines: tuple[bytes, ...]) -> bytes:
    """Lines without white space, as ``git patch-id`` compares them."""
    return b"\n".join([line.translate(None, b" \t\r\v\f\n") for line in lines])


class Edits:
    """The edits of commits, read when first asked for and kept. ``pairs`` are (parent, commit)."""

    def __init__(self, repo: Repo, pairs: Iterable[Pair]) -> None:
        self.repo = repo
        self.paths: dict[Pair, list[PathChange]] = commit_diffs(
            repo, list(dict.fromkeys(pairs)), renames=RENAME_PERCENT
        )
        self._patches: dict[Pair, tuple[FilePatch, ...]] = {}

    def load(self, pairs: Iterable[Pair]) -> None:
        """Read the hunks of several commits in one process."""
        wanted = [pair for pair in dict.fromkeys(pairs) if pair not in self._patches]
        self._patches.update(read_patches(self.repo, {pair: self.paths[pair] for pair in wanted}))

    def patches(self, pair: Pair) -> tuple[FilePatch, ...]:
        """The hunks of one commit."""
        if pair not in self._patches:
            self.load([pair])
        return self._patches[pair]

    def touched(self, pair: Pair) -> set[str]:
        """All paths that a commit touches, old names of moved files included."""
        return {path for change in self.paths[pair] for path in (change.old_path, change.path)}


def read_patches(repo: Repo, changes: dict[Pair, list[PathChange]]) -> dict[Pair, tuple[FilePatch, ...]]:
    """The hunks of many commits, given their changed paths from the same rename setting."""
    if not changes:
        return {}
    options = [
        "--root",
        "-r",
        "-m",
        "-p",
        "-U0",
        "--always",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--inter-hunk-context=0",
    ]
    finished = repo.run("diff-tree", "--stdin", *options, f"-M{RENAME_PERCENT}%", stdin=pairs_input(repo, changes))
    result: dict[Pair, tuple[FilePatch, ...]] = {}
    sections = _sections(finished.stdout)
    for pair, paths in changes.items():
        next(sections)  # the commit id
        result[pair] = tuple(_file_patch(change, sections) for change in paths)
    return result


def _file_patch(change: PathChange, sections: Iterator[bytes]) -> FilePatch:
    text = next(sections)
    if change.status == "T":  # git shows a change of type as a deletion and a creation
        text += next(sections)
    binary = _BINARY.search(text) is not None
    return FilePatch(change, () if binary else tuple(_parse_hunks(text)), binary)


def _sections(output: bytes) -> Iterator[bytes]:
    """Cut the output before each commit id and each ``diff --git`` line. No line of a hunk can look like either: all begin with +, - or \\."""
    starts = [match.start() for match in _SECTION.finditer(output)]
    for start, end in zip(starts, [*starts[1:], len(output)], strict=True):
        yield output[start:end]


def _parse_hunks(text: bytes) -> Iterator[Hunk]:
    heads = list(_HUNK.finditer(text))
    for head, following in zip_longest(heads, heads[1:]):
        old, old_count, new, new_count = (1 if group is None else int(group) for group in head.groups())
        lines = text[head.end() : following.start() if following else len(text)].split(b"\n")
        removed, rest = _side(lines, old_count)
        added, _ = _side(rest, new_count)
        # With a count of 0 git names the line *after which* the edit stands.
        yield Hunk(old - bool(old_count), new - bool(new_count), removed, added)


def _side(lines: list[bytes], count: int) -> tuple[tuple[bytes, ...], list[bytes]]:
    """One side of a hunk, whose `count` lines stand together since there is no context, and what follows it."""
    side = [line[1:] + b"\n" for line in lines[:count]]
    if lines[count : count + 1] and lines[count].startswith(b"\\"):  # no newline at the end of the file
        side[-1] = side[-1][:-1]
        count += 1
    return tuple(side), lines[count:]


def is_inverse(undo: Iterable[FilePatch], done: Iterable[FilePatch]) -> bool:
    """Whether the first set of edits takes back exactly the second: the same files, each with old and new swapped."""
    forward = {patch.change.path: patch for patch in done}
    backward = {patch.change.old_path: patch for patch in undo}
    if forward.keys() != backward.keys() or not forward:
        return False
    return all(_takes_back(backward[path], patch) for path, patch in forward.items())


def _takes_back(undo: FilePatch, done: FilePatch) -> bool:
    a, b = undo.change, done.change
    if (a.old_path, a.path, a.old_mode, a.mode) != (b.path, b.old_path, b.mode, b.old_mode):
        return False
    if (a.old_oid, a.oid) == (b.oid, b.old_oid):
        return True
    if undo.binary or done.binary:
        return False
    # Other changes of the file lie in between: then the hunks must mirror each other.
    return bool(done.hunks) and [(h.added, h.removed) for h in undo.hunks] == [(h.removed, h.added) for h in done.hunks]
