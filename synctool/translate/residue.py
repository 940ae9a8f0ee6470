"""Upstream's words that a translation left over."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from typing import NamedTuple

from synctool.policy.model import Policy, Rule
from synctool.translate.families import family_forms, flag_forms
from synctool.translate.matcher import Span


class Residue(NamedTuple):
    """An upstream word left in a text. ``line`` and ``column`` count from 1; ``rule`` is what names the word as upstream's."""

    line: int
    column: int
    word: str
    rule: Rule


class ResidueScanner:
    """Looks for the spellings of all families in any letter case, flags without a target, and the regexes of ``translate.residue``."""

    def __init__(self, policy: Policy) -> None:
        self._searches: list[tuple[re.Pattern[str], Rule]] = []
        for flag in policy.flags:
            if flag.to is None:
                forms = "|".join(sorted(map(re.escape, flag_forms(flag)), key=len, reverse=True))
                self._searches.append((re.compile(rf"(?<![A-Za-z0-9])(?:{forms})(?![\w-])"), flag))
        for family in policy.families:
            words = {
                word.lower() for word, target in family_forms(family).items() if word.lower() not in target.lower()
            }
            if words:
                forms = "|".join(sorted(map(re.escape, words), key=lambda word: (-len(word), word)))
                self._searches.append((re.compile(forms, re.IGNORECASE), family))
        for pattern in policy.translate.residue:
            self._searches.append((re.compile(pattern, re.MULTILINE), policy.translate))

    def scan(self, text: str, protected: Sequence[Span]) -> list[Residue]:
        """The leftovers of a translated text, in order. Where several rules name one place, the first of the order above is told."""
        starts = [span[0] for span in protected]
        taken: dict[int, tuple[int, Rule]] = {}
        for pattern, rule in self._searches:
            for match in pattern.finditer(text):
                number = bisect.bisect_right(starts, match.start()) - 1
                if number >= 0 and match.start() < protected[number][1]:
                    continue
                if not any(start <= match.start() < end for start, (end, _) in taken.items()):
                    taken[match.start()] = match.end(), rule
        found = []
        for start, (end, rule) in sorted(taken.items()):
            line = text.count("\n", 0, start) + 1
            column = start - (text.rfind("\n", 0, start) + 1) + 1
            found.append(Residue(line, column, text[start:end], rule))
        return found
