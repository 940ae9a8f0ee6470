"""Canonical words: a text with every known word of either project in one spelling, so that differences of vocabulary alone disappear."""

from __future__ import annotations

import re
from functools import lru_cache

from synctool.mirror.resolve.tokens import text_of
from synctool.policy.model import Policy
from synctool.translate.families import family_forms
from synctool.translate.translator import Translator


class Canonical:
    """Called with a text's bytes, gives its canonical form."""

    def __init__(self, policy: Policy, translator: Translator) -> None:
        self._translator = translator
        spellings: dict[str, str] = {}
        for family in policy.families:
            for source, target in family_forms(family).items():
                spellings[source.lower()] = spellings[target.lower()] = family.to.lower()
        self._spellings = spellings
        ordered = sorted(map(re.escape, spellings), key=len, reverse=True)
        self._regex = re.compile("|".join(ordered), re.IGNORECASE) if ordered else None
        self._cached = lru_cache(maxsize=1 << 16)(self._make)

    def __call__(self, data: bytes) -> str:
        return self._cached(data)

    def _make(self, data: bytes) -> str:
        text = self._translator.text(text_of(data))
        if self._regex is None:
            return text
        return self._regex.sub(lambda match: self._spellings[match.group().lower()], text)
