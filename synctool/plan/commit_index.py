"""Which of downstream's commits make an edit: exactly, or among others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from synctool.plan.hunks import Edits, FilePatch, Pair, telling
from synctool.plan.model import Evidence, Strength

#: A part of a larger downstream commit proves something from this many telling lines on.
PART_LINES = 5


class CommitIndex:
    """The edits of downstream's commits, by path."""

    def __init__(self, edits: Edits, pairs: Sequence[Pair], paths: set[str]) -> None:
        edits.look(pairs)
        near = [pair for pair in pairs if not paths.isdisjoint(edits.touched(pair))]
        edits.load(near)
        self.paths = {path for pair in near for path in edits.touched(pair)}
        self._edits = edits
        self._by_path: defaultdict[str, dict[Pair, FilePatch]] = defaultdict(dict)
        for pair in near:
            for patch in edits.patches(pair):
                self._by_path[patch.change.path][pair] = patch

    def match(self, patches: Sequence[FilePatch]) -> Evidence | None:
        """A downstream commit that makes exactly this edit, or makes it among others; the smallest and then the oldest of several."""
        holders = list(self._by_path.get(patches[0].change.path, ())) if patches else []
        for patch in patches:
            holders = self._holding(patch, holders)
        if not holders:
            return None
        says = sum(p.binary + sum(telling(h.added) + telling(h.removed) for h in p.hunks) for p in patches)
        if not says:
            return None
        sizes = {pair: len(self._edits.patches(pair)) for pair in holders}
        pair = min(holders, key=sizes.__getitem__)
        commit, count = pair[1], len(patches)
        if sizes[pair] == count:
            return Evidence("patch", Strength.STRONG, f"{commit[:9]} makes the same edit", commit, count, count)
        strength = Strength.STRONG if says >= PART_LINES else Strength.PARTIAL
        return Evidence("commit-hunks", strength, f"{commit[:9]} makes this edit among others", commit, count, count)

    def _holding(self, patch: FilePatch, pairs: Sequence[Pair]) -> list[Pair]:
        """Those of the commits that make the edit of one path."""
        there = self._by_path.get(patch.change.path, {})
        likely = [pair for pair in pairs if pair in there and patch.is_like(there[pair])]
        key = patch.key if likely else None
        return [pair for pair in likely if there[pair].key == key]
