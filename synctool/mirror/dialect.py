"""Brings downstream's lines up to the present vocabulary, in files that a change touches anyway.

A rule that the policy gained later (a flag's name, a command) never reached the lines that were translated before it, so
that the same upstream line is spelled in two ways downstream. A line that reads exactly as the word families alone would
have put upstream's line was not written by a person: it takes the policy's form.
"""

from __future__ import annotations

from synctool.mirror.filetext import is_binary
from synctool.mirror.pieces import lines_of


def modernise(ours: bytes, base: bytes, plain: bytes) -> bytes:
    """Downstream's text with outdated lines replaced. ``base`` is upstream's text in full translation, ``plain`` through the families alone.

    Only whole lines count, only where the two translations agree about which line it is, and never a line that full translation gives as well.
    """
    if is_binary(ours) or is_binary(base):
        return ours
    new, old = lines_of(base), lines_of(plain)
    if len(new) != len(old):
        return ours
    present = set(new)
    forms: dict[bytes, set[bytes]] = {}
    for outdated, current in zip(old, new, strict=True):
        if outdated != current:
            forms.setdefault(outdated, set()).add(current)
    certain = {
        outdated: next(iter(currents))
        for outdated, currents in forms.items()
        if len(currents) == 1 and outdated not in present
    }
    if not certain:
        return ours
    return b"".join(certain.get(line, line) for line in lines_of(ours))
