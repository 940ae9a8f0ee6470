"""What commits edit, as values: the changed paths of many commits in one git process, and the hunks too for those whose hunks are asked for."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from synctool.git.diff import PathChange, commit_diffs, pairs_input, parse_raw_lines
from synctool.git.repo import Repo

#: Similarity in percent from which a deleted and an added file count as one that moved: git's own default.
RENAME_PERCENT = 50
_RANGES = re.compile(rb"(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_BINARY = re.compile(rb"^(?:Binary files |GIT binary patch)", re.MULTILINE)

#: A line says something when it has at least this many letters and digits: brackets and blank lines repeat everywhere.
TELLING_CHARACTERS = 3
_SILENT = bytes(code for code in range(128) if not chr(code).isalnum() and chr(code) != "\n")

Pair = tuple[str, str]
Lines = tuple[bytes, ...]


def telling(lines: Lines) -> int:
    """How many lines say something."""
    return sum([len(said) >= TELLING_CHARACTERS for said in b"\n".join(lines).translate(None, _SILENT).split(b"\n")])


class Hunk(NamedTuple):
    """One edit without context. ``old_at`` and ``new_at`` are the 0-based first line on each side; lines keep their newline."""

    old_at: int
    new_at: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


class FilePatch:
    """One path that a commit touches. ``binary`` files, pure renames and mode changes have no hunks."""

    __slots__ = ("_hunks", "_unread", "binary", "change")

    def __init__(
        self, change: PathChange, hunks: tuple[Hunk, ...] = (), binary: bool = False, *, unread: Sequence[bytes] = ()
    ) -> None:
        self.change = change
        self.binary = binary
        self._hunks = hunks
        self._unread = unread

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """The edits of the file, in order. Parsed when first asked for: most never are."""
        if self._unread:
            self._hunks, self._unread = tuple([_parse_hunk(text) for text in self._unread]), ()
        return self._hunks

    @property
    def kind(self) -> str:
        """Added, deleted, renamed or modified, as git's letter."""
        return self.change.status if self.change.status in "ADR" else "M"

    def is_like(self, other: FilePatch) -> bool:
        """Whether the keys may be equal, found out without parsing hunks."""
        counts = {len(patch._unread or patch._hunks) for patch in (self, other)}
        return self.binary is other.binary and self.kind == other.kind and len(counts) == 1

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal edits, wherever in the file: hunks without their places, or the blobs of a binary file."""
        if self.binary:
            return (self.change.path, self.change.old_oid, self.change.oid)
        return (self.change.path, self.kind, tuple((_squeeze(h.removed), _squeeze(h.added)) for h in self.hunks))


def _squeeze(lines: tuple[bytes, ...]) -> bytes:
    """Lines without white space, as ``git patch-id`` compares them."""
    return b"\n".join([line.translate(None, b" \t\r\v\f\n") for line in lines])


class Edits:
    """The edits of commits, read when first asked for and kept. Commits are named as pairs (parent, commit). Threads may share it: who asks for
    what another one is reading waits for it."""

    def __init__(self, repo: Repo) -> None:
        self.repo = repo
        self._reading = threading.Lock()
        self._changes: dict[Pair, list[PathChange]] = {}
        self._patches: dict[Pair, tuple[FilePatch, ...]] = {}

    def look(self, pairs: Iterable[Pair]) -> None:
        """Read which paths several commits change, in one process."""
        missing = [pair for pair in dict.fromkeys(pairs) if pair not in self._changes]
        if not missing:
            return
        with self._reading:
            wanted = [pair for pair in missing if pair not in self._changes]
            self._changes.update(commit_diffs(self.repo, wanted, renames=RENAME_PERCENT))

    def load(self, pairs: Iterable[Pair]) -> None:
        """Read the hunks of several commits, and which paths they change, in one process."""
        missing = [pair for pair in dict.fromkeys(pairs) if pair not in self._patches]
        if not missing:
            return
        with self._reading:
            wanted = [pair for pair in missing if pair not in self._patches]
            for pair, (changes, patches) in read_edits(self.repo, wanted).items():
                self._changes[pair], self._patches[pair] = changes, patches

    def changes(self, pair: Pair) -> list[PathChange]:
        """The paths that one commit changes."""
        if pair not in self._changes:
            self.look([pair])
        return self._changes[pair]

    def patches(self, pair: Pair) -> tuple[FilePatch, ...]:
        """The hunks of one commit."""
        if pair not in self._patches:
            self.load([pair])
        return self._patches[pair]

    def touched(self, pair: Pair) -> set[str]:
        """All paths that a commit touches, old names of moved files included."""
        return {path for change in self.changes(pair) for path in (change.old_path, change.path)}


def read_edits(repo: Repo, pairs: Sequence[Pair]) -> dict[Pair, tuple[list[PathChange], tuple[FilePatch, ...]]]:
    """The changed paths and the hunks of many commits."""
    if not pairs:
        return {}
    options = [
        "--root",
        "-r",
        "-m",
        "--raw",
        "--no-abbrev",
        "-p",
        "-U0",
        "--always",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--inter-hunk-context=0",
    ]
    finished = repo.run("diff-tree", "--stdin", *options, f"-M{RENAME_PERCENT}%", stdin=pairs_input(repo, pairs))
    return dict(zip(pairs, _edits(finished.stdout, [commit for _, commit in pairs]), strict=True))


def _edits(output: bytes, commits: Sequence[str]) -> Iterator[tuple[list[PathChange], tuple[FilePatch, ...]]]:
    """Cut the output at each commit id, file and hunk. No other line can look like any of these: all begin with a colon, +, - or \\."""
    end = 0
    output = b"\n" + output
    for commit, next_commit in zip_longest(commits, commits[1:]):
        start = end + 1 + len(commit)
        end = output.index(f"\n{next_commit}\n".encode(), start) if next_commit else len(output) - 1
        raw, *texts = output[start:end].split(b"\ndiff --git ")
        changes = parse_raw_lines(raw.split(b"\n"))
        files = iter(texts)
        yield changes, tuple([_file_patch(change, files) for change in changes])


def _file_patch(change: PathChange, files: Iterator[bytes]) -> FilePatch:
    head, *hunks = next(files).split(b"\n@@ -")
    if change.status == "T":  # git shows a change of type as a deletion and a creation
        second, *more = next(files).split(b"\n@@ -")
        head, hunks = head + b"\n" + second, hunks + more
    binary = _BINARY.search(head) is not None
    return FilePatch(change, binary=binary, unread=() if binary else hunks)


def _parse_hunk(text: bytes) -> Hunk:
    """A hunk from its text after ``@@ -``."""
    match = _RANGES.match(text)
    assert match is not None
    old, old_count, new, new_count = map(int, match.groups(b"1"))
    _, *lines = text.split(b"\n")
    removed, rest = _side(lines, old_count)
    added, _ = _side(rest, new_count)
    # With a count of 0 git names the line *after which* the edit stands.
    return Hunk(old - bool(old_count), new - bool(new_count), removed, added)


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
