"""Translating single lines of a file, for those who need a few of many: whether that is the same as translating it whole, and doing it.

A line of a text becomes what it becomes in any other text, unless a rule sees beyond it: a regex that may match a line break or looks for an end of the
text, or a literal with a line break in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from synctool.policy.model import Protect, Scoped
from synctool.translate.needle import find_all, needle, sees_beyond_line
from synctool.translate.vocabulary import literals_and_patterns

#: Distinct lines that are kept; beyond that the memory begins anew.
KEPT_LINES = 1 << 18
#: The references of a template to groups, which hold nothing that was not matched.
_REFERENCE = re.compile(r"\\(?:[1-9](?!\d)|g<\w+>)")


def wide_rules(rules: Iterable[Scoped]) -> list[tuple[Scoped, Callable[[str], bool]]]:
    """The rules that may see or write more than a line, each with what tells whether it might do so in a text."""
    found: list[tuple[Scoped, Callable[[str], bool]]] = []
    for rule in rules:
        if isinstance(rule, Protect):
            if sees_beyond_line(rule.pattern):
                found.append((rule, partial(_matches, rule.pattern)))
            continue
        literals, patterns = literals_and_patterns([rule])
        sources = [literal.source for literal in literals if "\n" in literal.source + literal.target]
        for pattern in patterns:
            rest = _REFERENCE.sub("", pattern.template)
            if sees_beyond_line(pattern.regex) or "\n" in rest or "\\" in rest:
                # Whether it matches is not asked: it is searched between protected spans, whose edges count as ends of the text.
                sources.append(needle(pattern.regex))
        if sources:
            found.append((rule, partial(_holds_one, sources)))
    return found


def _matches(regex: re.Pattern[str], text: str) -> bool:
    return any(find_all(regex, text))


def _holds_one(sources: Sequence[str], text: str) -> bool:
    return any(source in text for source in sources)


class LineWords:
    """Translates lines (bytes of UTF-8, without their line break), each distinct one once. Without a translation they stay as they are."""

    def __init__(self, translate: Callable[[str], str] | None = None) -> None:
        self._translate = translate
        self._known: dict[bytes, bytes] = {}

    def __call__(self, lines: Sequence[bytes]) -> tuple[bytes, ...]:
        """The lines in downstream's words."""
        if self._translate is None:
            return tuple(lines)
        try:
            return tuple(map(self._known.__getitem__, lines))
        except KeyError:
            self.learn(lines)
            return tuple(map(self._known.__getitem__, lines))

    def learn(self, lines: Iterable[bytes]) -> None:
        """Translate all new ones among these lines at once: many in one text cost far less than each in its own."""
        if self._translate is None:
            return
        if len(self._known) > KEPT_LINES:
            self._known = {}
        new = [line for line in dict.fromkeys(lines) if line not in self._known]
        # One odd character makes a whole text wider in memory, and slower.
        for part in ([line for line in new if line.isascii()], [line for line in new if not line.isascii()]):
            if part:
                text = b"\n".join(part).decode()
                done = self._translate(text)
                self._known.update(zip(part, part if done is text else done.encode().split(b"\n"), strict=True))
