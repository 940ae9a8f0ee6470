"""Vocabulary learned from one file: the words that downstream replaced throughout it, read off the translated base and downstream's text.

A person who renamed a variable or a flag by hand did so everywhere in that file. Applied to both upstream sides, such a substitution makes lines equal that
would conflict, and carries the name into upstream's new lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from synctool.mirror.resolve.tokens import changed_blocks, is_identifier, nearest, tokens

#: Blocks longer than this were rewritten, not renamed in: pairing their lines would be guesswork.
_MOST_LINES = 25
_ALIKE = 0.75


def learn(base: str, ours: str) -> dict[str, str]:
    """Token substitutions base -> ours that are total in this file (the source token is nowhere in ours) and have a single target."""
    old, new = _middle(base.splitlines(), ours.splitlines())
    counted: defaultdict[str, set[str]] = defaultdict(set)
    for kind, i1, i2, j1, j2 in changed_blocks(old, new):
        if kind != "replace" or max(i2 - i1, j2 - j1) > _MOST_LINES:
            continue
        for line in old[i1:i2]:
            number = nearest(line, new[j1:j2], _ALIKE)
            if number is not None:
                for source, target in _substitutions(tokens(line), tokens(new[j1 + number])):
                    counted[source].add(target)
    return {
        source: next(iter(targets))
        for source, targets in counted.items()
        if len(targets) == 1 and not _has_token(ours, source)
    }


def _middle(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """The lines between what both texts begin and end with: most of a file is the same, and need not be compared line by line."""
    start = 0
    shortest = min(len(old), len(new))
    while start < shortest and old[start] == new[start]:
        start += 1
    end = 0
    while end < shortest - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return old[start : len(old) - end], new[start : len(new) - end]


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
