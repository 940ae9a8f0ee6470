"""Aligns two versions of a text line by line and word by word, and counts which words became which."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher

#: Longer files are left out: aligning them costs more than they teach.
MAX_LINES = 6000
#: Changed blocks of unequal length are aligned by their most similar lines, up to this size.
MAX_BLOCK = 40

_TOKEN = re.compile(r"-{0,2}[A-Za-z0-9_]+(?:[-./:][A-Za-z0-9_]+)*|\s+|[^A-Za-z0-9_\s]")
_PIECE = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]+")
_SYLLABLE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|.")


@dataclass
class Changes:
    """Counts over many files. ``whole`` counts whole tokens; ``core`` what is left of them without common ends, with whether it stood inside a
    longer word; ``kept`` is the text of upstream lines that came through, ``dropped`` of those that did not; ``equal`` and ``lines`` count lines.
    """

    whole: Counter[tuple[str, str]] = field(default_factory=Counter)
    core: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    kept: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    equal: int = 0
    lines: int = 0

    def add(self, upstream: str, downstream: str, translate: Callable[[str], str] = str) -> None:
        """Count one pair of files. ``translate`` is what is known of the vocabulary already: lines are aligned after it, and only what it
        does not explain is counted, in upstream's own words.
        """
        old, new = upstream.splitlines(), downstream.splitlines()
        if max(len(old), len(new)) > MAX_LINES:
            return
        known = translate(upstream).splitlines()
        if len(known) != len(old):
            return
        self.lines += max(len(old), len(new))
        for tag, a, b, c, d in SequenceMatcher(None, known, new, autojunk=False).get_opcodes():
            if tag == "equal":
                self.equal += b - a
                self.kept += old[a:b]
            elif tag == "delete":
                self.dropped += old[a:b]
            elif tag == "replace":
                paired = dict(_pair_lines(known[a:b], new[c:d]))
                for i in range(b - a):
                    if i in paired:
                        self._line(old[a + i], known[a + i], new[c + paired[i]])
                    else:
                        self.dropped.append(old[a + i])

    def _line(self, raw: str, known: str, new: str) -> None:
        raws, one, other = (_TOKEN.findall(line) for line in (raw, known, new))
        if len(raws) != len(one):
            return
        for tag, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
            if tag == "equal":
                self.kept.append(" ".join(raws[a:b]))
            elif tag == "replace" and b - a == d - c:
                for source, before, after in zip(raws[a:b], one[a:b], other[c:d], strict=True):
                    if before.strip() and after.strip():
                        self.whole[source, after] += 1
                        self.core.update(_cores(source, after))
            elif tag in ("replace", "delete"):
                self.dropped.append(" ".join(raws[a:b]))


def _pair_lines(old: list[str], new: list[str]) -> Iterator[tuple[int, int]]:
    """Which line of a changed block became which, in order."""
    if len(old) == len(new):
        yield from enumerate(range(len(new)))
        return
    if max(len(old), len(new)) > MAX_BLOCK:
        return
    start = 0
    words = [set(_TOKEN.findall(line)) for line in new]
    for i, line in enumerate(old):
        mine = set(_TOKEN.findall(line))
        scores = [(len(mine & words[j]) / max(1, len(mine | words[j])), -j) for j in range(start, len(new))]
        if scores and max(scores)[0] > 0.5:
            j = -max(scores)[1]
            yield i, j
            start = j + 1


def _cores(source: str, after: str) -> Iterator[tuple[str, str, bool]]:
    """The parts in which two tokens differ, and whether each stood inside a longer word."""
    one, other = _PIECE.findall(source), _PIECE.findall(after)
    if len(one) != len(other):
        one, other = _trim(one, other)
        yield "".join(one), "".join(other), False
        return
    for a, b in zip(one, other, strict=True):
        if a != b:
            first, second = _trim(_SYLLABLE.findall(a), _SYLLABLE.findall(b))
            short_a, short_b = "".join(first), "".join(second)
            if short_a and short_b:
                inside = short_a != a or "_" in source
                yield short_a, short_b, inside
            else:
                yield a, b, False


def shorten(source: str, after: str) -> tuple[str, str]:
    """Two tokens without the parts that they begin and end with alike, unless a plain word would be left, which says too little."""
    one, other = _trim(_PIECE.findall(source), _PIECE.findall(after))
    short = "".join(one)
    return (short, "".join(other)) if not short.isalnum() else (source, after)


def _trim(one: list[str], other: list[str]) -> tuple[list[str], list[str]]:
    """Two lists without their common beginning and end."""
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    end = 0
    while end < min(len(one), len(other)) - start and one[-1 - end] == other[-1 - end]:
        end += 1
    return one[start : len(one) - end], other[start : len(other) - end]
