"""Resolvers that are applied. The first ones settle what both sides agree on once vocabulary and blanks at line ends are put aside, or keep both edits whole.

The last two let downstream's removal of a text stand against upstream's edits to it; what is dropped that way is filed as work, so that nothing is lost unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synctool.mirror.pieces import Hunk, Pieces, hunks_of
from synctool.mirror.refine import refine
from synctool.mirror.resolve.tokens import alike, changed_blocks

#: Lines from which on a replaced block is a text of its own, and the share of it that upstream must have kept.
_BLOCK = 6
_KEPT = 0.5
#: Longer hunks are not judged by how alike they are.
_MOST_LINES = 1000

Canonical = Callable[[bytes], str]


def _said(lines: Sequence[bytes], canonical: Canonical) -> list[str]:
    """The lines in canonical words, without blank ones and blanks at line ends."""
    told = (canonical(line).rstrip() for line in lines)
    return [line for line in told if line]


def vocabulary(hunk: Hunk, canonical: Canonical) -> Pieces | None:
    """One side differs from base, or from the other side, in vocabulary only: then the other side's change stands."""
    ours, base, theirs = (_said(side, canonical) for side in (hunk.ours, hunk.base, hunk.theirs))
    if ours == theirs or theirs == base:
        return (hunk.ours,)
    if ours == base:
        return (hunk.theirs,)
    return None


def present(hunk: Hunk, canonical: Canonical) -> Pieces | None:
    """All that theirs adds stands in ours already, and nothing that it removes does: downstream was there before."""
    ours, base, theirs = (
        {line.strip() for line in _said(side, canonical)} for side in (hunk.ours, hunk.base, hunk.theirs)
    )
    if theirs - base <= ours and not (base - theirs) & ours:
        return (hunk.ours,)
    return None


def beside(hunk: Hunk, canonical: Canonical) -> Pieces | None:
    """Theirs only inserts lines, next to lines that ours changed: both edits stand, none is lost."""
    if not hunk.base or max(len(hunk.base), len(hunk.theirs)) > _MOST_LINES:
        return None
    if any(kind != "insert" for kind, *_ in changed_blocks(hunk.base, hunk.theirs)):
        return None
    pieces = refine(hunk)
    return None if hunks_of(pieces) else pieces


def removed(hunk: Hunk, canonical: Canonical) -> Pieces | None:
    """Downstream removed the lines, and upstream only edits them: they stay removed, as a file would. What upstream adds beyond half as much is news."""
    if hunk.ours or not _mere_edit(hunk):
        return None
    return ((),)


def rewritten(hunk: Hunk, canonical: Canonical) -> Pieces | None:
    """Downstream put text of its own in the place of a whole block, of which upstream edits less than half: downstream's stands."""
    if not hunk.ours or not _BLOCK <= len(hunk.base) <= _MOST_LINES or not _mere_edit(hunk):
        return None
    ours, base, theirs = ([canonical(line).strip() for line in side] for side in (hunk.ours, hunk.base, hunk.theirs))
    if {line for line in ours if line} & set(base) or alike(base, theirs) < _KEPT:
        return None
    return (hunk.ours,)


def _mere_edit(hunk: Hunk) -> bool:
    old, new = len(hunk.base), len(hunk.theirs)
    return old > 0 and new * 2 >= old and (new - old) * 2 < old
