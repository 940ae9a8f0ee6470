"""Line alignment of two versions of one file, fast: lines that are unique in both anchor it, and only the stretches between them are compared in full."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from synctool.mirror.resolve.tokens import Opcode, changed_blocks

Line = TypeVar("Line", str, bytes)

#: Stretches without an anchor whose lengths multiply to more than this are not compared: full comparison takes time in the square of their length, and a
#: file of one line repeated would take hours.
_MOST_PAIRS = 1 << 21


def aligned_changes(old: Sequence[Line], new: Sequence[Line]) -> Iterator[Opcode]:
    """The places where two texts differ, as ``difflib`` names them. Not always the shortest edit, but one that a person would see (patience diff)."""
    start, shortest = 0, min(len(old), len(new))
    while start < shortest and old[start] == new[start]:
        start += 1
    end = 0
    while end < shortest - start and old[-1 - end] == new[-1 - end]:
        end += 1
    done_old, done_new = start, start
    last = [(len(old) - end, len(new) - end)]
    for here, there in _anchors(old, new, start, end) + last:
        if here == done_old and there == done_new:
            done_old, done_new = here + 1, there + 1
            continue
        if (here - done_old) * (there - done_new) > _MOST_PAIRS:
            yield "replace", done_old, here, done_new, there
            done_old, done_new = here + 1, there + 1
            continue
        for kind, i1, i2, j1, j2 in changed_blocks(old[done_old:here], new[done_new:there]):
            yield kind, done_old + i1, done_old + i2, done_new + j1, done_new + j2
        done_old, done_new = here + 1, there + 1


def _anchors(old: Sequence[Line], new: Sequence[Line], start: int, end: int) -> list[tuple[int, int]]:
    """Pairs of places of lines that stand once in each text, the longest run of them that is in order on both sides."""
    middle_old, middle_new = range(start, len(old) - end), range(start, len(new) - end)
    counts_old, counts_new = Counter(old[n] for n in middle_old), Counter(new[n] for n in middle_new)
    where = {old[n]: n for n in middle_old if counts_old[old[n]] == 1}
    pairs = [(where[new[n]], n) for n in middle_new if counts_new[new[n]] == 1 and new[n] in where]
    # Longest increasing subsequence of the old places, by patience sorting.
    tops: list[int] = []
    piles: list[int] = []
    previous: list[int] = []
    for number, (place, _) in enumerate(pairs):
        pile = bisect_left(tops, place)
        tops[pile : pile + 1] = [place]
        piles[pile : pile + 1] = [number]
        previous.append(piles[pile - 1] if pile else -1)
    chain: list[tuple[int, int]] = []
    number = piles[-1] if piles else -1
    while number >= 0:
        chain.append(pairs[number])
        number = previous[number]
    return chain[::-1]
