"""Upstream's words that a translation left over."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import ahocorasick

from synctool.policy.model import Family, Flag, Policy, Rule
from synctool.translate.families import family_forms, flag_forms
from synctool.translate.matcher import Span
from synctool.translate.needle import find_all
from synctool.translate.vocabulary import compile_rules


class Residue(NamedTuple):
    """An upstream word left in a text. ``line`` and ``column`` count from 1; ``rule`` is what names the word as upstream's."""

    line: int
    column: int
    word: str
    rule: Rule


class ResidueScanner:
    """Looks for the spellings of all families in any letter case, flags without a target, and the regexes of ``translate.residue``."""

    def __init__(self, policy: Policy) -> None:
        self._words = ahocorasick.Automaton()
        # Where flags without a target go through the families, it is their result that must be told.
        spelled = policy.translate.unmapped_flags == "family"
        families = compile_rules(list(policy.families)) if spelled else None
        named: tuple[Flag | Family, ...] = (*policy.flags, *policy.families)
        for rule in named:
            for word in _upstream_words(rule):
                if isinstance(rule, Flag) and families is not None:
                    word = families.replace(word)
                if word not in self._words:
                    self._words.add_word(word, (len(word), rule))
        if len(self._words):
            self._words.make_automaton()
        self._regexes = [re.compile(pattern, re.MULTILINE) for pattern in policy.translate.residue]
        self._settings = policy.translate

    def scan(self, text: str, protected: Sequence[Span]) -> list[Residue]:
        """The leftovers of a translated text, in order, without overlap: the leftmost and of those the longest."""
        hits: list[tuple[int, int, Rule]] = [
            (match.start(), match.end(), self._settings) for regex in self._regexes for match in find_all(regex, text)
        ]
        hits += self._word_hits(text)
        starts = [span[0] for span in protected]
        found: list[Residue] = []
        free = line = line_start = 0
        for start, end, rule in sorted(hits, key=lambda hit: (hit[0], -hit[1])):
            number = bisect.bisect_right(starts, start) - 1
            if start < free or (number >= 0 and start < protected[number][1]):
                continue
            free = end
            line += text.count("\n", line_start, start)
            line_start = text.rfind("\n", 0, start) + 1
            found.append(Residue(line + 1, start - line_start + 1, text[start:end], rule))
        return found

    def _word_hits(self, text: str) -> Iterator[tuple[int, int, Rule]]:
        if not len(self._words):
            return
        folded = text.lower()
        if len(folded) != len(text):  # a few letters grow when lowered, and places would shift
            folded = "".join(lower if len(lower := letter.lower()) == 1 else letter for letter in text)
        for last, (length, rule) in self._words.iter(folded):
            start, end = last + 1 - length, last + 1
            if not isinstance(rule, Flag) or _stands_alone(text, start, end):
                yield start, end, rule


def _upstream_words(rule: Flag | Family) -> set[str]:
    """Lower-cased spellings that must not be left: all of a family's, and those of a flag without a target."""
    if isinstance(rule, Flag):
        return set() if rule.to is not None else set(flag_forms(rule))
    return {word.lower() for word, target in family_forms(rule).items() if word.lower() not in target.lower()}


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether a flag or attribute is not a part of a longer one."""
    return not (start and text[start - 1].isalnum()) and not (
        end < len(text) and (text[end].isalnum() or text[end] in "_-")
    )
