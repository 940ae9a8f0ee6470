"""Finds what is to be replaced: leftmost first, and of those that begin at one place the longest. Pure; the order of rules never matters.

Literals are found by one Aho-Corasick automaton, regexes by one search each; both are walked in step. Text inside protected spans is not looked at, though
patterns may look behind into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import ahocorasick

from synctool.policy.model import Rule
from synctool.translate.needle import find, needle

_WORD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
NOTHING: frozenset[str] = frozenset()
ALNUM = _WORD - {"_"}
WORD = _WORD
FLAG = _WORD | {"-"}

Span = tuple[int, int]


class Replacement(NamedTuple):
    """``text[start:end]`` becomes ``after``, by ``rule``."""

    start: int
    end: int
    after: str
    rule: Rule


class Candidate(NamedTuple):
    """What might be replaced next. Its first three fields order candidates: leftmost, longest, lowest rank."""

    start: int
    minus_end: int
    rank: int
    rule: Rule
    after: str = ""


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal text that is replaced where its neighbours allow it.

    ``not_before`` and ``not_after`` hold characters that must not touch it. With ``inside`` set it is replaced only where a letter, digit or
    underscore does touch it. ``rank`` decides between rules for one text: the lowest wins.
    """

    source: str
    target: str
    rule: Rule
    rank: int
    not_before: frozenset[str] = NOTHING
    not_after: frozenset[str] = NOTHING
    inside: bool = False

    def fits(self, text: str, start: int) -> bool:
        """Whether the text at ``start``, which is known to be the source, is to be replaced."""
        end = start + len(self.source)
        before = text[start - 1] if start else ""
        after = text[end] if end < len(text) else ""
        if before in self.not_before or after in self.not_after:
            return False
        return not self.inside or before in _WORD or after in _WORD


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regex and the template of its replacement."""

    regex: re.Pattern[str]
    template: str
    rule: Rule
    rank: int


def _order(literal: Literal) -> tuple[int, bool, str]:
    return literal.rank, not literal.inside, literal.target


class Matcher:
    """A compiled set of literals and patterns."""

    def __init__(self, literals: Iterable[Literal], patterns: Iterable[Pattern]) -> None:
        by_source: dict[str, list[Literal]] = {}
        for literal in literals:
            by_source.setdefault(literal.source, []).append(literal)
        self._automaton = ahocorasick.Automaton()
        for source, same in by_source.items():
            self._automaton.add_word(source, sorted(same, key=lambda one: (one.rank, not one.inside, one.target)))
        self._has_literals = bool(by_source)
        if by_source:
            self._automaton.make_automaton()
        self._patterns = sorted(patterns, key=lambda pattern: (pattern.rank, pattern.regex.pattern, pattern.template))

    def find(self, text: str, protected: Sequence[Span] = ()) -> Iterator[Replacement]:
        """Replacements in order, none of which touches a protected span. ``protected`` is sorted and does not overlap."""
        patterns = [pattern for pattern in self._patterns if needle(pattern.regex) in text]
        literals = self._literals(text)
        if not patterns and not literals:
            return
        start = 0
        for span_start, span_end in (*protected, (len(text), len(text))):
            if span_start > start:
                yield from _walk(text, start, span_start, literals, patterns)
            start = max(start, span_end)

    def replace(self, text: str, protected: Sequence[Span] = ()) -> str:
        """The text with everything replaced; the same object when nothing is."""
        pieces: list[str] = []
        position = 0
        for found in self.find(text, protected):
            pieces += (text[position : found.start], found.after)
            position = found.end
        if not pieces:
            return text
        pieces.append(text[position:])
        return "".join(pieces)

    def _literals(self, text: str) -> list[Candidate]:
        """All literals whose neighbours allow them, overlaps included; the best comes last.

        (The automaton's own leftmost-longest search is not used: version 2.3 misses a word that begins inside a longer one that then fails.)
        """
        if not self._has_literals:
            return []
        found = []
        for last, same in self._automaton.iter(text):
            begin = last + 1 - len(same[0].source)
            for literal in same:
                if literal.fits(text, begin):
                    found.append(Candidate(begin, -last - 1, literal.rank, literal.rule, literal.target))
                    break
        found.sort(key=lambda one: one[:3], reverse=True)
        return found


def _walk(text: str, start: int, end: int, literals: list[Candidate], patterns: list[Pattern]) -> Iterator[Replacement]:
    """Replacements within ``text[start:end]``. Takes literals off the end of their list as it passes them."""
    cursor = start
    matches = [find(pattern.regex, text, start, end) for pattern in patterns]
    while True:
        while literals and (
            literals[-1].start < cursor or (literals[-1].start < end and -literals[-1].minus_end > end)
        ):
            literals.pop()
        chosen = literals[-1] if literals and literals[-1].start < end else None
        by_pattern: re.Match[str] | None = None
        for pattern, match in zip(patterns, matches, strict=True):
            if match is not None:
                found = Candidate(match.start(), -match.end(), pattern.rank, pattern.rule, pattern.template)
                if chosen is None or found[:3] < chosen[:3]:
                    chosen, by_pattern = found, match
        if chosen is None:
            return
        cursor = -chosen.minus_end
        after = by_pattern.expand(chosen.after) if by_pattern is not None else chosen.after
        yield Replacement(chosen.start, cursor, after, chosen.rule)
        for number, match in enumerate(matches):
            if match is not None and match.start() < cursor:
                matches[number] = find(patterns[number].regex, text, cursor, end)
