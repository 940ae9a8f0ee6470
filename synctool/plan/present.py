"""Whether a change is in downstream already, by its content: the translated edit against downstream's commits and against downstream's tree.

The old and the new side of every file are translated whole, so that protected spans and file rules hold, and the hunks of upstream's own diff are read
out of them. A file whose translation has another number of lines can't be addressed that way and counts as not found.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from synctool.git.diff import PathChange
from synctool.git.objects import ObjectStore
from synctool.git.tree import SYMLINK, Tree
from synctool.plan.hunks import Edits, FilePatch, Hunk, Pair
from synctool.plan.model import Evidence, Strength

#: A line says something when it has at least this many letters and digits: brackets and blank lines repeat everywhere.
TELLING_CHARACTERS = 3
_TELLING = re.compile(rb"(?:[0-9A-Za-z\x80-\xff][^0-9A-Za-z\x80-\xff]*){%d}" % TELLING_CHARACTERS)
#: Modes of a side that is missing, or a commit of another repository.
_NO_BLOB = ("000000", "160000")
#: Context lines tried, most first. Without context only a block with this many telling lines counts.
CONTEXTS = (3, 2, 1)
BLOCK_LINES = 3
#: A part of a larger downstream commit proves something from this many telling lines on.
PART_LINES = 5

Lines = tuple[bytes, ...]


class Words(Protocol):
    """The part of the translator that is used here."""

    def path(self, upstream_path: str) -> str: ...

    def content(self, data: bytes, downstream_path: str) -> bytes: ...


class Search(NamedTuple):
    """How many units of an edit (hunks, and moves, modes or whole files) downstream's tree shows; ``telling`` lines among those found."""

    found: int
    total: int
    telling: int


@lru_cache(maxsize=1 << 16)
def telling(lines: Lines) -> int:
    """How many lines say something."""
    return sum(1 for line in lines if _TELLING.search(line))


class _Text:
    """A downstream file with an index of its lines."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.places: defaultdict[bytes, list[int]] = defaultdict(list)
        for place, line in enumerate(lines):
            self.places[line].append(place)

    def has(self, block: Lines) -> bool:
        """Whether the lines stand there one after another."""
        if not block:
            return True
        counts = [len(self.places.get(line, ())) for line in block]
        anchor = counts.index(min(counts))
        return any(
            place >= anchor and self.lines[place - anchor : place - anchor + len(block)] == block
            for place in self.places.get(block[anchor], ())
        )


def stripped(lines: Iterable[bytes]) -> Lines:
    """Lines without trailing white space: editors and formatters differ in it."""
    return tuple([line.rstrip() for line in lines])


class Presence:
    """Compares translated upstream edits with one downstream tree and with the edits of downstream's commits."""

    def __init__(self, store: ObjectStore, words: Words, tree: Tree, mirrored: Callable[[str], bool]) -> None:
        self.store = store
        self.words = words
        self.tree = tree
        self.mirrored = mirrored
        self._fetched: dict[str, bytes] = {}
        self._translated = lru_cache(maxsize=1024)(self._translate)
        self._lines = lru_cache(maxsize=1024)(self._read_lines)
        self._downstream = lru_cache(maxsize=1024)(self._read_downstream)

    def _translate(self, oid: str, path: str) -> tuple[bytes, bool]:
        """A translated file, and whether it has as many lines as the original, so that upstream's line numbers hold."""
        data = self._fetched[oid] if oid in self._fetched else self.store.read(oid, "blob")
        translated = self.words.content(data, path)
        return translated, translated is data or translated.count(b"\n") == data.count(b"\n")

    def _read_lines(self, oid: str, path: str) -> Lines | None:
        """The lines of a translated file, or None when upstream's line numbers do not hold in it."""
        translated, aligned = self._translated(oid, path)
        return tuple(translated.split(b"\n")) if aligned else None

    def _read_downstream(self, oid: str) -> _Text:
        return _Text(stripped(self.store.read(oid, "blob").split(b"\n")))

    def relevant(self, patches: Iterable[FilePatch]) -> list[FilePatch]:
        """The patches whose downstream path is mirrored."""
        return [patch for patch in patches if self.mirrored(self.words.path(patch.change.path))]

    def fetch(self, patches: Iterable[FilePatch]) -> None:
        """Read the upstream sides of these patches in one go, since git answers questions one by one slowly. The next call lets go of them."""
        changes = [patch.change for patch in patches]
        sides = [(c.old_oid, c.old_mode) for c in changes] + [(c.oid, c.mode) for c in changes]
        self._fetched = self.store.read_many(oid for oid, mode in sides if mode not in _NO_BLOB)

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
        lines = sum(telling(h.added) + telling(h.removed) for h in patch.hunks)
        total = max(units + len(patch.hunks), 1)
        if here is None:
            return Search(0, total, 0)
        if change.old_mode != change.mode:
            found += here.mode == change.mode
        if change.status == "R":
            old_path = self.words.path(change.old_path)
            found += old_path == path or self.tree.get(old_path) is None
        if patch.binary or not patch.hunks or SYMLINK in (here.mode, change.mode):
            same = here.oid == change.oid or self._same(here.oid, change.oid, path)
            if units == 0 or patch.hunks:
                return Search(total if same else 0, total, 1 if same else 0)
            return Search(found, total, 1 if found == total else 0)
        if self._same(here.oid, change.oid, path):
            return Search(total, total, lines)
        said = 0
        new_lines = self._lines(change.oid, path)
        old_lines = () if change.status == "A" else self._lines(change.old_oid, self.words.path(change.old_path))
        if new_lines is None or old_lines is None:
            return Search(0, total, 0)
        text = self._downstream(here.oid)
        for hunk in patch.hunks:
            if _in_text(text, hunk, new_lines, old_lines):
                found += 1
                said += telling(hunk.added) + telling(hunk.removed)
        return Search(found, total, said)

    def _same(self, downstream_oid: str, upstream_oid: str, path: str) -> bool:
        return self.store.hash("blob", self._translated(upstream_oid, path)[0]) == downstream_oid

    def translate_patch(self, patch: FilePatch) -> FilePatch | None:
        """A patch in downstream's words, or None when its lines can't be addressed."""
        change = patch.change
        path, old_path = self.words.path(change.path), self.words.path(change.old_path)
        moved = change._replace(path=path, old_path=old_path)
        if patch.binary or not patch.hunks or SYMLINK in (change.mode, change.old_mode):
            return FilePatch(moved, patch.hunks, patch.binary)
        new_lines = self._lines(change.oid, path) if change.status != "D" else ()
        old_lines = self._lines(change.old_oid, old_path) if change.status != "A" else ()
        if new_lines is None or old_lines is None:
            return None
        hunks = []
        for hunk in patch.hunks:
            removed = old_lines[hunk.old_at : hunk.old_at + len(hunk.removed)]
            added = new_lines[hunk.new_at : hunk.new_at + len(hunk.added)]
            hunks.append(Hunk(hunk.old_at, hunk.new_at, removed, added))
        # A hunk that only swaps one project's word for the other's says nothing once translated.
        return FilePatch(moved, tuple(h for h in hunks if h.removed != h.added), False)


def _extra_units(change: PathChange) -> int:
    mode = change.status != "A" and change.old_mode != change.mode
    return int(change.status == "R") + int(mode)


def _in_text(text: _Text, hunk: Hunk, new: Lines, old: Lines) -> bool:
    """Whether downstream's file shows the new side of a hunk and no longer the old one."""
    start, end = hunk.new_at, hunk.new_at + len(hunk.added)
    old_start, old_end = hunk.old_at, hunk.old_at + len(hunk.removed)
    says = telling(hunk.added)
    for context in CONTEXTS:
        if context < CONTEXTS[0] and not says:
            return False  # a pure deletion, or brackets only: nothing but full context proves it
        block = stripped(new[max(start - context, 0) : end + context])
        if telling(block) < 2 or not text.has(block):
            continue
        # The old side still there means that this is another place that looks alike. One line of context says too little for that.
        around = max(context, 2)
        before = stripped(old[max(old_start - around, 0) : old_end + around])
        return telling(before) < 2 or not text.has(before)
    if says < BLOCK_LINES or not text.has(stripped(new[start:end])):
        return False
    return not telling(hunk.removed) or not text.has(stripped(old[old_start:old_end]))


class CommitIndex:
    """The edits of downstream's commits, by file and content."""

    def __init__(self, edits: Edits, pairs: Iterable[Pair], paths: set[str]) -> None:
        near = [pair for pair in pairs if not paths.isdisjoint(edits.touched(pair))]
        edits.load(near)
        self.paths = {path for pair in near for path in edits.touched(pair)}
        self.keys: dict[str, set[tuple[object, ...]]] = {}
        self.by_key: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
        for pair in near:
            keys = {patch.key for patch in edits.patches(pair)}
            self.keys[pair[1]] = keys
            for key in keys:
                self.by_key[key].append(pair[1])

    def match(self, patches: Sequence[FilePatch]) -> Evidence | None:
        """A downstream commit that makes exactly this edit, or makes it among others."""
        keys = {patch.key for patch in patches}
        says = sum(telling(h.added) + telling(h.removed) for p in patches for h in p.hunks) + sum(
            p.binary for p in patches
        )
        if not keys or not says:
            return None
        holders = set(self.by_key.get(next(iter(keys)), ()))
        for key in keys:
            holders &= set(self.by_key.get(key, ()))
        for commit in sorted(holders, key=lambda oid: (self.keys[oid] != keys, len(self.keys[oid]))):
            count = len(keys)
            if self.keys[commit] == keys:
                return Evidence("patch", Strength.STRONG, f"{commit[:9]} makes the same edit", commit, count, count)
            strength = Strength.STRONG if says >= PART_LINES else Strength.PARTIAL
            return Evidence(
                "commit-hunks", strength, f"{commit[:9]} makes this edit among others", commit, count, count
            )
        return None


def by_content(presence: Presence, index: CommitIndex, patches: Sequence[FilePatch]) -> list[Evidence]:
    """Evidence from content, strongest first."""
    relevant = presence.relevant(patches)
    if not relevant:
        return []
    evidence: list[Evidence] = []
    presence.fetch(relevant)
    # Translating every hunk is the dear part: not for edits of files that no commit here ever touched.
    if all(presence.words.path(patch.change.path) in index.paths for patch in relevant):
        translated = [presence.translate_patch(patch) for patch in relevant]
        if None not in translated:
            says = [p for p in translated if p is not None and (p.hunks or p.binary or p.change.status != "M")]
            matched = index.match(says)
            evidence += [matched] if matched is not None else []
    seen = presence.search(relevant)
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
    return sorted(evidence, key=lambda item: list(Strength).index(item.strength))
