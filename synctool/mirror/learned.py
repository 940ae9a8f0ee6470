"""Vocabulary learned from one file: the words that downstream replaced throughout it, read off the translated base and downstream's text.

A person who renamed a variable or a flag by hand did so everywhere in that file. Applied to both upstream sides, such a substitution makes lines equal that
would conflict, and carries the name into upstream's new lines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from synctool.mirror.resolve.tokens import changed_blocks, is_identifier, nearest, tokens

#: Blocks longer than this were rewritten, not renamed in: pairing their lines would be guesswork.
_MOST_LINES = 25
_ALIKE = 0.75


def learn(base: str, ours: str) -> dict[str, str]:
    """Token substitutions base -> ours that are total in this file (the source token is nowhere in ours) and have a single target."""
    old, new = base.splitlines(), ours.splitlines()
    counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for kind, i1, i2, j1, j2 in changed_blocks(old, new):
        if kind != "replace" or max(i2 - i1, j2 - j1) > _MOST_LINES:
            continue
        for line in old[i1:i2]:
            number = nearest(line, new[j1:j2], _ALIKE)
            if number is None:
                continue
            for source, target in _substitutions(tokens(line), tokens(new[j1 + number])):
                counted[source][target] += 1
    if not counted:
        return {}
    present = set(tokens(ours))
    return {
        source: next(iter(targets))
        for source, targets in counted.items()
        if len(targets) == 1 and source not in present
    }


def _substitutions(old: list[str], new: list[str]) -> list[tuple[str, str]]:
    return [
        (old[i1], new[j1])
        for kind, i1, i2, j1, j2 in changed_blocks(old, new)
        if kind == "replace" and i2 - i1 == j2 - j1 == 1 and is_identifier(old[i1]) and is_identifier(new[j1])
    ]


def substitute(text: str, learned: Mapping[str, str]) -> str:
    """The text with whole tokens replaced."""
    if not any(source in text for source in learned):
        return text
    return "".join(learned.get(token, token) for token in tokens(text))
