"""Vocabulary learned from one file: the words that downstream replaced throughout it, read off the translated base and downstream's text.

A person who renamed a variable or a flag by hand did so everywhere in that file. Applied to both upstream sides, such a substitution makes lines equal that
would conflict, and carries the name into upstream's new lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache

from synctool.mirror.anchors import aligned_changes
from synctool.mirror.resolve.tokens import changed_blocks, is_identifier, nearest, tokens

#: Blocks longer than this were rewritten, not renamed in: pairing their lines would be guesswork.
_MOST_LINES = 25
_ALIKE = 0.75
#: Longer lines are data, not prose or code.
_MOST_CHARACTERS = 600


def learn(base: str, ours: str) -> dict[str, str]:
    """Token substitutions base -> ours that are total in this file (the source token is nowhere in ours) and have a single target."""
    old, new = base.splitlines(), ours.splitlines()
    counted: defaultdict[str, set[str]] = defaultdict(set)
    for kind, i1, i2, j1, j2 in aligned_changes(old, new):
        if kind == "replace" and max(i2 - i1, j2 - j1) <= _MOST_LINES:
            for source, target in _in_block(tuple(old[i1:i2]), tuple(new[j1:j2])):
                counted[source].add(target)
    return {
        source: next(iter(targets))
        for source, targets in counted.items()
        if len(targets) == 1 and not _has_token(ours, source)
    }


@lru_cache(maxsize=4096)
def _in_block(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The substitutions in one block. The same blocks come again with each change to a file, hence the cache."""
    found: list[tuple[str, str]] = []
    if max(map(len, old + new)) > _MOST_CHARACTERS:
        return ()
    for line in old:
        number = nearest(line, new, _ALIKE)
        if number is not None:
            found += _substitutions(tokens(line), tokens(new[number]))
    return tuple(found)


def _has_token(text: str, token: str) -> bool:
    return token in text and any(token in tokens(line) for line in text.splitlines() if token in line)


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
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if any(source in line for source in learned):
            lines[number] = "".join(learned.get(token, token) for token in tokens(line))
    return "".join(lines)
