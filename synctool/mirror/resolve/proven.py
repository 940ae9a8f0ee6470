"""Resolvers that are applied: what they settle, both sides agree on once vocabulary and blanks at line ends are put aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synctool.mirror.pieces import Hunk, Pieces

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
    ours, base, theirs = ({line.strip() for line in _said(side, canonical)} for side in (hunk.ours, hunk.base, hunk.theirs))
    if theirs - base <= ours and not (base - theirs) & ours:
        return (hunk.ours,)
    return None
