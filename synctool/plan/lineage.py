"""Which change of a range stands on which earlier one, by the origin of every line.

Each file is a list of line origins (the place of the change in the range that wrote the line, or -1) and a list of gaps (the change that last removed
something there). A hunk stands on what it removes, on what was removed inside it, and on its direct neighbours, because a three-way merge
conflicts with those too. Lines no hunk ever reached are not stored, so the cost follows the size of the diffs and not that of the files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from synctool.plan.hunks import FilePatch, Hunk

UNTOUCHED = -1


class _File:
    """Line origins of one file. ``whole`` is the change that made, moved or retyped the file as such."""

    __slots__ = ("gaps", "lines", "whole")

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.gaps: list[int] = [UNTOUCHED]
        self.whole = UNTOUCHED

    def edit(self, hunk: Hunk, author: int) -> set[int]:
        """Apply one hunk and return the changes that it stands on."""
        start, end = hunk.old_at, hunk.old_at + len(hunk.removed)
        short = end + 1 - len(self.lines)
        if short > 0:
            self.lines.extend([UNTOUCHED] * short)
            self.gaps.extend([UNTOUCHED] * short)
        under = {*self.lines[max(start - 1, 0) : end + 1], *self.gaps[start : end + 1]}
        before, after = (author, author) if hunk.removed else (self.gaps[start], self.gaps[end])
        count = len(hunk.added)
        self.lines[start:end] = [author] * count
        self.gaps[start : end + 1] = [before, *[UNTOUCHED] * (count - 1), after] if count else [author]
        return under


def stands_on(edits: Sequence[Iterable[FilePatch]], paths: set[str] | None = None) -> list[dict[int, set[str]]]:
    """For each set of edits, oldest first: the earlier ones that it stands on, with the paths where it does.

    ``paths`` limits the work to those files (and to what they are renamed to).
    """
    files: dict[str, _File] = {}
    followed = set(paths) if paths is not None else None
    result: list[dict[int, set[str]]] = []
    for author, patches in enumerate(edits):
        under: defaultdict[int, set[str]] = defaultdict(set)
        moved: dict[str, _File] = {}
        for patch in patches:
            change = patch.change
            if followed is not None:
                if change.old_path not in followed and change.path not in followed:
                    continue
                followed.add(change.path)
            file = files.setdefault(change.old_path, _File())
            found = {file.whole}
            for hunk in reversed(patch.hunks):  # from the end, so that line numbers above stay right
                found |= file.edit(hunk, author)
            as_a_whole = change.status != "M" or patch.binary or change.old_mode != change.mode
            if as_a_whole:
                found |= set(file.lines) if change.status in "DT" or patch.binary else set()
                file.whole = author
            if change.status == "R":
                found.add(files[change.path].whole if change.path in files else UNTOUCHED)
                moved[change.path] = file
                files[change.old_path] = gone = _File()
                gone.whole = author
            for earlier in found - {UNTOUCHED, author}:
                under[earlier].add(change.path)
        files.update(moved)
        result.append(dict(under))
    return result
