"""What people wrote in the place of a conflict: found in their file by the settled lines around each hunk."""

from __future__ import annotations

import difflib

from synctool.mirror.pieces import Hunk, Lines, lines_of, parse_conflicts


def human_lines(marked: bytes, truth: bytes) -> list[Lines]:
    """For each hunk of a text with markers the lines that stand at that place in the resolved text."""
    settled: list[object] = []
    places: list[int] = []
    for piece in parse_conflicts(marked):
        if isinstance(piece, Hunk):
            places.append(len(settled))
        else:
            settled.extend(piece)
    lines = lines_of(truth)
    pairs: dict[int, int] = {}
    for start, other, size in difflib.SequenceMatcher(None, settled, lines, autojunk=False).get_matching_blocks():
        pairs.update((start + n, other + n) for n in range(size))
    found = []
    for place in places:
        before = next((pairs[n] + 1 for n in range(place - 1, -1, -1) if n in pairs), 0)
        after = next((pairs[n] for n in range(place, len(settled)) if n in pairs), len(lines))
        found.append(lines[before:after])
    return found


def same_text(one: bytes, other: bytes) -> bool:
    """Equal but for blanks and letter case: spelling differs by file, and is no question of merging."""
    return b"".join(one.split()).lower() == b"".join(other.split()).lower()
