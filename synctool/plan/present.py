"""Whether a change is in downstream already, by its content: the translated edit against downstream's commits and against downstream's tree.

The lines of upstream's own diff are translated as they stand in their file: one by one where no rule sees more than a line of it, else read out of the file
translated whole. A file whose whole translation has another number of lines can't be addressed that way and counts as not found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from threading import Thread
from typing import NamedTuple, Protocol

from synctool.git.diff import PathChange
from synctool.git.objects import ObjectStore
from synctool.git.tree import SUBMODULE, SYMLINK, Tree
from synctool.plan.ahead import quietly
from synctool.plan.beside import beside
from synctool.plan.commit_index import CommitIndex
from synctool.plan.hunks import Edits, FilePatch, Hunk, Lines, Pair, telling
from synctool.plan.model import Evidence, Strength, strongest_first
from synctool.translate.linewise import LineWords

#: Modes of a side that is missing, or a commit of another repository.
_NO_BLOB = ("000000", SUBMODULE)
#: Modes of what is compared as a whole, not by line.
_WHOLE = frozenset((SYMLINK, SUBMODULE))
#: Context lines tried, most first. Without context only a block with this many telling lines counts.
CONTEXTS = (3, 2, 1)
BLOCK_LINES = 3

#: The files of about this many edits are held at once.
BATCH_FILES = 1024
#: A second process is begun for at least so many files: for fewer it would take longer to begin than to look.
SHARED_FILES = 100


class Words(Protocol):
    """The part of the translator that is used here."""

    def path(self, upstream_path: str) -> str: ...

    def content(self, data: bytes, downstream_path: str) -> bytes: ...

    def by_line(self, data: bytes, downstream_path: str) -> LineWords | None: ...


class Search(NamedTuple):
    """How many units of an edit (hunks, and moves, modes or whole files) downstream's tree shows; ``telling`` lines among those found."""

    found: int
    total: int
    telling: int


class _Text:
    """A downstream file in which blocks of lines are looked for."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._distinct = frozenset(lines)
        self._joined = b"\n".join([b"", *lines, b""])

    def knows(self, lines: Lines) -> bool:
        """Whether each of the lines stands there somewhere."""
        return self._distinct.issuperset(lines)

    def has(self, block: Lines) -> bool:
        """Whether the lines stand there one after another."""
        return self.knows(block) and (not block or b"\n".join([b"", *block, b""]) in self._joined)

    def may_be(self, side: _Side, hunks: Iterable[Hunk]) -> bool:
        """Whether nothing quick speaks against this being all of a translated file: the number of lines, or those of the hunks."""
        if len(side.lines) != len(self._lines):
            return False
        spans = ((hunk.new_at, hunk.new_at + len(hunk.added)) for hunk in hunks)
        return all(self._lines[start:end] == stripped(side.block(start, end)) for start, end in spans)


class _Side:
    """One side of an upstream file: its lines, and what translates them (None: they are translated already)."""

    __slots__ = ("lines", "words")

    def __init__(self, lines: Lines, words: LineWords | None = None) -> None:
        self.lines = lines
        self.words = words

    def block(self, start: int, end: int) -> Lines:
        """Translated lines from ``start`` to before ``end``."""
        part = self.lines[start:end]
        return part if self.words is None else self.words(part)


_NOTHING = _Side(())


def stripped(lines: Iterable[bytes]) -> Lines:
    """Lines without trailing white space: editors and formatters differ in it."""
    return tuple(map(bytes.rstrip, lines))


class Presence:
    """Compares translated upstream edits with one downstream tree and with the edits of downstream's commits."""

    def __init__(self, store: ObjectStore, words: Words, tree: Tree, is_ours: Callable[[str], bool]) -> None:
        self.store = store
        self.words = words
        self.tree = tree
        self.is_ours = is_ours
        self._fetched: dict[str, bytes] = {}
        self._read_sides: dict[tuple[str, str], _Side | None] = {}
        self._downstream = lru_cache(maxsize=1024)(self._read_downstream)

    def _read(self, oid: str) -> bytes:
        return self._fetched[oid] if oid in self._fetched else self.store.read(oid, "blob")

    def _side(self, oid: str, path: str) -> _Side | None:
        """An upstream file in downstream's words, or None when upstream's line numbers do not hold in it."""
        key = oid, path
        if key not in self._read_sides:
            self._read_sides[key] = self._read_side(oid, path)
        return self._read_sides[key]

    def _read_side(self, oid: str, path: str) -> _Side | None:
        data = self._read(oid)
        words = self.words.by_line(data, path)
        if words is not None:
            return _Side(tuple(data.split(b"\n")), words)
        translated = self.words.content(data, path)
        aligned = translated is data or translated.count(b"\n") == data.count(b"\n")
        return _Side(tuple(translated.split(b"\n"))) if aligned else None

    def _read_downstream(self, oid: str) -> _Text:
        return _Text(stripped(self._read(oid).split(b"\n")))

    def _sides(self, change: PathChange) -> tuple[_Side, _Side] | None:
        """The old and the new side of a file, or None when one of them can't be addressed by line."""
        old = self._side(change.old_oid, self.words.path(change.old_path)) if change.status != "A" else _NOTHING
        new = self._side(change.oid, self.words.path(change.path)) if change.status != "D" else _NOTHING
        return None if old is None or new is None else (old, new)

    def relevant(self, changes: Iterable[PathChange]) -> list[PathChange]:
        """The changes of paths that come here."""
        return [change for change in changes if self.is_ours(change.path)]

    def has(self, patch: FilePatch) -> bool:
        """Whether downstream's tree has the file of a patch."""
        return self.words.path(patch.change.path) in self.tree

    def fetch(self, changes: Sequence[PathChange]) -> None:
        """Read the files of these changes, on all sides, in one go: git answers questions one by one slowly. The next call lets go of them."""
        files = [(c.old_oid, c.old_mode) for c in changes] + [(c.oid, c.mode) for c in changes]
        files += [(here.oid, here.mode) for c in changes if (here := self.tree.get(self.words.path(c.path)))]
        self._fetched = self.store.read_many(oid for oid, mode in files if mode not in _NO_BLOB)
        self._read_sides = {}

    def learn(self, patches: Iterable[FilePatch]) -> None:
        """Translate all lines that will be asked for in one go: many in one text cost less than each in its own."""
        wanted: defaultdict[LineWords, list[bytes]] = defaultdict(list)
        for patch in patches:
            sides = self._sides(patch.change) if _has_lines(patch) else None
            if sides is None:
                continue
            for side, spans in zip(sides, _spans(patch.hunks), strict=True):
                if side.words is not None:
                    for start, end in spans:
                        wanted[side.words] += side.lines[start:end]
        for words, lines in wanted.items():
            words.learn(lines)

    def search(self, patches: Iterable[FilePatch]) -> Search:
        """Look for an edit in downstream's tree."""
        found = total = said = 0
        for patch in patches:
            part = self._search_file(patch)
            found, total, said = found + part.found, total + part.total, said + part.telling
        return Search(found, total, said)

    def _search_file(self, patch: FilePatch) -> Search:
        change = patch.change
        path = self.words.path(change.path)
        here = self.tree.get(path)
        if change.status == "D":
            return Search(int(here is None), 1, 1 if here is None else 0)
        units, found = _extra_units(change), 0
        total = max(units + len(patch.hunks), 1)
        if here is None:
            return Search(0, total, 0)
        if _changes_mode(change):
            found += here.mode == change.mode
        if change.status == "R":
            old_path = self.words.path(change.old_path)
            found += old_path == path or self.tree.get(old_path) is None
        modes = (here.mode, change.mode)
        if patch.binary or not patch.hunks or not _WHOLE.isdisjoint(modes):
            same = here.oid == change.oid or (SUBMODULE not in modes and self._same(here.oid, change.oid, path))
            if units == 0 or patch.hunks:
                return Search(total if same else 0, total, 1 if same else 0)
            return Search(found, total, 1 if found == total else 0)
        sides, text = self._sides(change), self._downstream(here.oid)
        if (sides is None or text.may_be(sides[1], patch.hunks)) and self._same(here.oid, change.oid, path):
            return Search(total, total, sum(telling(h.added) + telling(h.removed) for h in patch.hunks))
        if sides is None:
            return Search(0, total, 0)
        said = 0
        for hunk in patch.hunks:
            if _in_text(text, hunk, *sides):
                found += 1
                said += telling(hunk.added) + telling(hunk.removed)
        return Search(found, total, said)

    def _same(self, downstream_oid: str, upstream_oid: str, path: str) -> bool:
        """Whether the whole file is downstream's once translated."""
        side = self._side(upstream_oid, path)
        if side is None:
            translated = self.words.content(self._read(upstream_oid), path)
        else:
            translated = b"\n".join(side.block(0, len(side.lines)))
        return self.store.hash("blob", translated) == downstream_oid

    def translate_patch(self, patch: FilePatch) -> FilePatch | None:
        """A patch in downstream's words, or None when its lines can't be addressed."""
        change = patch.change
        path, old_path = self.words.path(change.path), self.words.path(change.old_path)
        moved = change._replace(path=path, old_path=old_path)
        if not _has_lines(patch):
            return FilePatch(moved, patch.hunks, patch.binary)
        sides = self._sides(change)
        if sides is None:
            return None
        old, new = sides
        hunks = []
        for hunk in patch.hunks:
            removed = old.block(hunk.old_at, hunk.old_at + len(hunk.removed))
            added = new.block(hunk.new_at, hunk.new_at + len(hunk.added))
            hunks.append(Hunk(hunk.old_at, hunk.new_at, removed, added))
        # A hunk that only swaps one project's word for the other's says nothing once translated.
        return FilePatch(moved, tuple(h for h in hunks if h.removed != h.added), False)


def _has_lines(patch: FilePatch) -> bool:
    """Whether an edit is one of text lines."""
    modes = (patch.change.mode, patch.change.old_mode)
    return not patch.binary and bool(patch.hunks) and _WHOLE.isdisjoint(modes)


def _changes_mode(change: PathChange) -> bool:
    """Whether the mode is an edit of its own; that of a new file is not."""
    return change.status != "A" and change.old_mode != change.mode


def _extra_units(change: PathChange) -> int:
    return int(change.status == "R") + int(_changes_mode(change))


def _around(at: int, lines: Lines) -> tuple[int, int]:
    """Where a side of a hunk begins and ends with all the context that is ever looked at."""
    return max(at - CONTEXTS[0], 0), at + len(lines) + CONTEXTS[0]


def _spans(hunks: Sequence[Hunk]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where the hunks are on the old side, and with their context on the new one. The lines of the old one's context are among both."""
    return [(h.old_at, h.old_at + len(h.removed)) for h in hunks], [_around(h.new_at, h.added) for h in hunks]


def _in_text(text: _Text, hunk: Hunk, old: _Side, new: _Side) -> bool:
    """Whether downstream's file shows the new side of a hunk and no longer the old one."""
    start, end = hunk.new_at, hunk.new_at + len(hunk.added)
    old_start, old_end = hunk.old_at, hunk.old_at + len(hunk.removed)
    low, high = _around(start, hunk.added)
    whole = stripped(new.block(low, high))
    added = whole[start - low : end - low]
    if not text.knows(added):
        return False
    says = telling(hunk.added)
    for context in CONTEXTS:
        if context < CONTEXTS[0] and not says:
            return False  # a pure deletion, or brackets only: nothing but full context proves it
        block = whole[max(start - context, 0) - low : end + context - low]
        if not text.has(block) or telling(block) < 2:
            continue
        # The old side still there means that this is another place that looks alike. One line of context says too little for that.
        around = max(context, 2)
        before = stripped(old.block(max(old_start - around, 0), old_end + around))
        return not text.has(before) or telling(before) < 2
    if says < BLOCK_LINES or not text.has(added):
        return False
    return not telling(hunk.removed) or not text.has(stripped(old.block(old_start, old_end)))


def by_content(
    presence: Presence, edits: Edits, upstream: Sequence[Pair], own: Edits, downstream: Sequence[Pair]
) -> Iterator[list[Evidence]]:
    """Evidence from content for each of some upstream commits, strongest first. ``downstream`` are the commits to compare with, ``own`` their edits."""
    if not upstream:
        return
    edits.look(upstream)
    relevant = [presence.relevant(edits.changes(pair)) for pair in upstream]
    paths = {presence.words.path(change.path) for changes in relevant for change in changes}
    # git reads the hunks of both histories at once.
    reader = Thread(target=quietly, args=(partial(edits.load, upstream),), daemon=True)
    reader.start()
    index = CommitIndex(own, downstream, paths)
    reader.join()
    edits.load(upstream)
    asked = [_patches_of(edits.patches(pair), changes) for pair, changes in zip(upstream, relevant, strict=True)]
    sizes = list(map(len, asked))
    middle = _middle(sizes)
    with beside(partial(_look, presence, index, asked[middle:]), worth=sum(sizes[middle:]) >= SHARED_FILES) as later:
        yield from _look(presence, index, asked[:middle])
        yield from later()


def _look(presence: Presence, index: CommitIndex, asked: Sequence[Sequence[FilePatch]]) -> Iterator[list[Evidence]]:
    """Evidence for each of some edits, whose files are read for many at once."""
    for span in _batches(list(map(len, asked))):
        # The lines of a file that downstream has neither now nor in a commit are not asked for.
        read: list[FilePatch] = []
        for edit in asked[span]:
            read += edit if _may_match(presence, index, edit) else filter(presence.has, edit)
        presence.fetch([patch.change for patch in read])
        presence.learn(read)
        for edit in asked[span]:
            yield _evidence(presence, index, edit) if edit else []


def _middle(sizes: Sequence[int]) -> int:
    """Where the second half of some sizes begins."""
    sums = list(accumulate(sizes))
    return bisect_left(sums, sums[-1] / 2) + 1


def _batches(sizes: Sequence[int]) -> Iterator[slice]:
    """Neighbours that have about ``BATCH_FILES`` files together."""
    start = files = 0
    for place, size in enumerate(sizes, 1):
        files += size
        if files >= BATCH_FILES or place == len(sizes):
            yield slice(start, place)
            start, files = place, 0


def _patches_of(patches: Iterable[FilePatch], changes: Iterable[PathChange]) -> list[FilePatch]:
    wanted = {change.path for change in changes}
    return [patch for patch in patches if patch.change.path in wanted]


def _may_match(presence: Presence, index: CommitIndex, patches: Iterable[FilePatch]) -> bool:
    """Whether downstream's commits reach all the paths of an edit."""
    return all(presence.words.path(patch.change.path) in index.paths for patch in patches)


def _evidence(presence: Presence, index: CommitIndex, patches: Sequence[FilePatch]) -> list[Evidence]:
    evidence: list[Evidence] = []
    if _may_match(presence, index, patches):
        translated = [presence.translate_patch(patch) for patch in patches]
        if None not in translated:
            says = [p for p in translated if p is not None and (p.hunks or p.binary or p.change.status != "M")]
            matched = index.match(says)
            evidence += [matched] if matched is not None else []
    seen = presence.search(patches)
    if seen.found == seen.total and seen.telling:
        evidence.append(Evidence("hunks", Strength.STRONG, "every hunk is in the tree", None, seen.found, seen.total))
    elif seen.found:
        evidence.append(
            Evidence(
                "hunks",
                Strength.PARTIAL,
                f"{seen.found} of {seen.total} hunks are in the tree",
                None,
                seen.found,
                seen.total,
            )
        )
    return strongest_first(evidence)
