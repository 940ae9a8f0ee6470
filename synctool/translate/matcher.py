"""Finds what is to be replaced: leftmost first, and of those that begin at one place the longest. Pure; the order of rules never matters.

Literals are found by one Aho-Corasick automaton, regexes by one search each, kept in step. Text inside protected spans is not looked at, though
patterns may look behind into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import ahocorasick

from synctool.policy.model import Rule
from synctool.translate.needle import needle

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
        for source in by_source:
            # When the longest text does not fit its neighbours, the next shorter one at the same place may.
            chain = [
                literal
                for length in range(len(source), 0, -1)
                for literal in sorted(by_source.get(source[:length], ()), key=_order)
            ]
            self._automaton.add_word(source, (len(source), chain))
        self._has_literals = bool(by_source)
        if by_source:
            self._automaton.make_automaton()
        self._patterns = sorted(patterns, key=lambda pattern: (pattern.rank, pattern.regex.pattern, pattern.template))

    def find(self, text: str, protected: Sequence[Span] = ()) -> Iterator[Replacement]:
        """Replacements in order, none of which touches a protected span. ``protected`` is sorted and does not overlap."""
        patterns = [pattern for pattern in self._patterns if needle(pattern.regex) in text]
        start = 0
        for span_start, span_end in protected:
            if span_start > start:
                yield from self._find(text, start, span_start, patterns)
            start = max(start, span_end)
        if start < len(text):
            yield from self._find(text, start, len(text), patterns)

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

    def _find(self, text: str, start: int, end: int, patterns: list[Pattern]) -> Iterator[Replacement]:
        literals = self._literals(text, start, end)
        literal = next(literals, None)
        matches = [pattern.regex.search(text, start, end) for pattern in patterns]
        while True:
            chosen, number = literal, -1
            for position, match in enumerate(matches):
                if match is not None:
                    pattern = patterns[position]
                    found = Candidate(match.start(), -match.end(), pattern.rank, pattern.rule)
                    if chosen is None or found[:3] < chosen[:3]:
                        chosen, number = found, position
            if chosen is None:
                return
            cursor = -chosen.minus_end
            if number < 0:
                yield Replacement(chosen.start, cursor, chosen.after, chosen.rule)
            else:
                match = matches[number]
                assert match is not None
                yield Replacement(chosen.start, cursor, match.expand(patterns[number].template), chosen.rule)
            if literal is not None and literal.start < cursor:
                if number >= 0:  # part of it was used up; look again behind what was used
                    literals = self._literals(text, cursor, end)
                literal = next(literals, None)
            for position, match in enumerate(matches):
                if match is not None and match.start() < cursor:
                    matches[position] = patterns[position].regex.search(text, cursor, end)

    def _literals(self, text: str, start: int, end: int) -> Iterator[Candidate]:
        """Fitting literals from ``start`` on, leftmost-longest, without overlap."""
        again = self._has_literals
        while again:
            again = False
            for last, (length, chain) in self._automaton.iter_long(text, start, end):
                begin = last + 1 - length
                fitting = next((one for one in chain if one.fits(text, begin)), None)
                stop = begin + 1 if fitting is None else begin + len(fitting.source)
                if fitting is not None:
                    yield Candidate(begin, -stop, fitting.rank, fitting.rule, fitting.target)
                if stop != last + 1:  # a shorter one was taken, or none: what lies behind it has not been looked at
                    start, again = stop, True
                    break
