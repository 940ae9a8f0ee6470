"""Takes a hunk apart: edits of the two sides that touch but do not overlap are settled, so that only what both really changed is left.

git joins neighbouring edits into one conflict. Here base is cut wherever neither side's edit spans the place, and each part is judged by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from synctool.mirror.pieces import Hunk, Lines, Piece, Pieces, compact
from synctool.mirror.resolve.tokens import changed_blocks

_MOST_LINES = 400

Block = tuple[int, int, Lines]


def _blocks(base: Lines, other: Lines) -> list[Block]:
    return [(i1, i2, other[j1:j2]) for _, i1, i2, j1, j2 in changed_blocks(base, other)]


def refine(hunk: Hunk) -> Pieces:
    """The hunk as settled lines and smaller hunks."""
    if max(len(hunk.ours), len(hunk.base), len(hunk.theirs)) > _MOST_LINES:
        return (hunk,)
    return compact(_parts(hunk.base, _blocks(hunk.base, hunk.ours), _blocks(hunk.base, hunk.theirs)))


def _parts(base: Lines, ours: Sequence[Block], theirs: Sequence[Block]) -> Iterator[Piece]:
    """Walk both edit lists over base. Edits that share a base line, or insert at one place, form one part."""
    position = a = b = 0
    while a < len(ours) or b < len(theirs):
        # Where one side inserts and the other replaces at the same place, the insertion comes first and stands alone.
        start, end, _ = min(edits[n] for edits, n in ((ours, a), (theirs, b)) if n < len(edits))
        yield base[position:start]
        first_a, first_b = a, b
        while True:
            if a < len(ours) and _joins(ours[a], start, end):
                end, a = max(end, ours[a][1]), a + 1
            elif b < len(theirs) and _joins(theirs[b], start, end):
                end, b = max(end, theirs[b][1]), b + 1
            else:
                break
        yield from _judge(base, start, end, ours[first_a:a], theirs[first_b:b])
        position = end
    yield base[position:]


def _joins(block: Block, start: int, end: int) -> bool:
    """Whether an edit belongs to the part ``start:end`` of base: it shares a line with it, or both insert there."""
    return block[0] < end or block[0] == block[1] == start == end


def _judge(base: Lines, start: int, end: int, ours: Sequence[Block], theirs: Sequence[Block]) -> Iterator[Piece]:
    mine, yours = _apply(base, start, end, ours), _apply(base, start, end, theirs)
    if not theirs or mine == yours:
        yield mine
    elif not ours:
        yield yours
    else:
        yield Hunk(mine, base[start:end], yours)


def _apply(base: Lines, start: int, end: int, blocks: Sequence[Block]) -> Lines:
    result: Lines = ()
    for i1, i2, lines in blocks:
        result += base[start:i1] + lines
        start = i2
    return result + base[start:end]
