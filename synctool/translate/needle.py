"""What can be told of a regex before it is searched for, so that most text need not be searched at all: looking for a plain text is many times faster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

try:  # the parser of re; not documented, so do without where it is not there
    from re import _constants, _parser  # type: ignore[attr-defined]
except ImportError:
    _parser = None

_BREAK = ord("\n")
_CATEGORIES_WITH_BREAK = ("CATEGORY_SPACE", "CATEGORY_NOT_DIGIT", "CATEGORY_NOT_WORD")
_LINE_PLACES = ("AT_BEGINNING", "AT_END", "AT_BOUNDARY", "AT_NON_BOUNDARY")


@lru_cache(maxsize=1024)
def _parse(regex: re.Pattern[str]) -> Sequence[tuple[Any, Any]]:
    parsed: Sequence[tuple[Any, Any]] = _parser.parse(regex.pattern, regex.flags & ~re.UNICODE)
    return parsed


@lru_cache(maxsize=1024)
def needle(regex: re.Pattern[str]) -> str:
    """A text that every match must hold: the longest literal run at the top level of a regex; empty when nothing is certain.

    Alternatives, repetitions, groups and look-arounds end a run; anchors do not, as they take no room.
    """
    if _parser is None or regex.flags & re.IGNORECASE:
        return ""
    runs = [""]
    for kind, value in _parse(regex):
        if kind is _constants.LITERAL:
            runs[-1] += chr(value)
        elif kind is not _constants.AT:
            runs.append("")
    return max(runs, key=len)


@lru_cache(maxsize=1024)
def sees_beyond_line(regex: re.Pattern[str]) -> bool:
    """Whether a match may depend on more than the line that it begins in."""
    if _parser is None or regex.flags & re.DOTALL or not regex.flags & re.MULTILINE:
        return True
    return _any_wide(_parse(regex))


def _any_wide(parsed: Iterable[tuple[Any, Any]]) -> bool:
    return any(_is_wide(str(kind), value) for kind, value in parsed)


def _is_wide(kind: str, value: Any) -> bool:
    """Whether one node of a parsed regex may match a line break. A node that is not known here counts as one that may."""
    match kind, value:
        case "LITERAL", _:
            return bool(value == _BREAK)
        case "NOT_LITERAL", _:
            return bool(value != _BREAK)
        case ("ANY" | "GROUPREF", _):
            return False
        case "AT", _:
            return str(value) not in _LINE_PLACES
        case "IN", _:
            return _has_break(value)
        case "BRANCH", (_, branches):
            return any(_any_wide(branch) for branch in branches)
        case "SUBPATTERN", (_, added, removed, inner):
            return bool(added & re.DOTALL or removed) or _any_wide(inner)
        case (("MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT"), (_, _, inner)):
            return _any_wide(inner)
        case (("ASSERT" | "ASSERT_NOT"), (_, inner)):
            return _any_wide(inner)
        case "ATOMIC_GROUP", inner:
            return _any_wide(inner)
    return True


def _has_break(members: Sequence[tuple[Any, Any]]) -> bool:
    """Whether a set of characters holds the line break."""
    inside = negated = False
    for kind, value in members:
        if kind is _constants.NEGATE:
            negated = True
        elif kind is _constants.LITERAL:
            inside |= value == _BREAK
        elif kind is _constants.RANGE:
            inside |= value[0] <= _BREAK <= value[1]
        else:
            inside |= str(value) in _CATEGORIES_WITH_BREAK
    return inside is not negated


@lru_cache(maxsize=1024)
def _hops(regex: re.Pattern[str]) -> bool:
    """Whether a search had better look at the lines with the needle only: it is slow where it can't run ahead to a first character."""
    return needle(regex) != "" and not sees_beyond_line(regex) and str(next(iter(_parse(regex)))[0]) == "AT"


def find(regex: re.Pattern[str], text: str, start: int, end: int) -> re.Match[str] | None:
    """``regex.search(text, start, end)``."""
    if not _hops(regex):
        return regex.search(text, start, end)
    wanted = needle(regex)
    while (place := text.find(wanted, start, end)) >= 0:
        start = max(start, text.rfind("\n", start, place) + 1)
        line_end = text.find("\n", place, end)
        line_end = end if line_end < 0 else line_end
        match = regex.search(text, start, line_end)
        if match is not None:
            return match
        start = line_end
    return None


def find_all(regex: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """``regex.finditer(text)``, without empty matches."""
    if needle(regex) not in text:
        return
    if not _hops(regex):
        yield from (match for match in regex.finditer(text) if match.end() > match.start())
        return
    start = 0
    while (match := find(regex, text, start, len(text))) is not None:
        yield match
        start = match.end()
