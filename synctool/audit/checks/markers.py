"""What a merge leaves behind: conflict markers, rejected hunks, backup files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from synctool.audit.context import Audit
from synctool.audit.finding import Hit, Rule

MARKER = Rule("conflict-marker", "a conflict marker", "the file does not parse, or says two things")
LEFTOVER = Rule("merge-leftover", "a file that a failed merge left", "it belongs to no one")
RULES = (MARKER, LEFTOVER)

_START = re.compile(rb"^(?:<{7}|>{7}|\|{7})(?: .*)?\r?$", re.MULTILINE)


def check(audit: Audit) -> Iterator[Hit]:
    """A line of seven signs, with its partner: underlined headings of seven letters are none."""
    audit.tree.preload(list(audit.tree.entries))
    for path in sorted(audit.tree.entries):
        if path.endswith((".rej", ".orig")):
            yield Hit(LEFTOVER, path, path, 0, f"{path} is left from a merge", "delete it")
        data = audit.tree.data(path)
        if b"<<<<<<<" not in data and b">>>>>>>" not in data:
            continue
        for found in _START.finditer(data):
            line = data.count(b"\n", 0, found.start()) + 1
            yield Hit(
                MARKER,
                path,
                path,
                line,
                f"conflict marker {found[0][:7].decode()}",
                "resolve it: 'vime-sync conflicts' lists what is open",
            )
