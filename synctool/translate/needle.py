"""A text that every match of a regex must hold, so that most files need no search at all: looking for a plain text is many times faster."""

from __future__ import annotations

import re
from functools import lru_cache

try:  # the parser of re; not documented, so do without where it is not there
    from re import _constants, _parser  # type: ignore[attr-defined]
except ImportError:
    _parser = None


@lru_cache(maxsize=1024)
def needle(regex: re.Pattern[str]) -> str:
    """The longest literal run at the top level of a regex; empty when nothing is certain.

    Alternatives, repetitions, groups and look-arounds end a run; anchors do not, as they take no room.
    """
    if _parser is None or regex.flags & re.IGNORECASE:
        return ""
    runs = [""]
    for kind, value in _parser.parse(regex.pattern, regex.flags & ~re.UNICODE):
        if kind is _constants.LITERAL:
            runs[-1] += chr(value)
        elif kind is not _constants.AT:
            runs.append("")
    return max(runs, key=len)
