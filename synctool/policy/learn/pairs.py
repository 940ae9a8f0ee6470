"""Which downstream file is which upstream file: same path, moved with its content, or the same path with learned words replaced."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from synctool.policy.learn.evidence import Support

#: From this similarity in percent on, two files of different names are taken for one that moved.
SURE_MOVE = 75

_PART = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]+")


@dataclass(frozen=True)
class Pairing:
    """``pairs`` maps upstream to downstream paths; ``words`` are the replacements in paths; ``moves`` are pairs that no word explains,
    with the similarity in percent that git found.
    """

    pairs: Mapping[str, str]
    words: Mapping[tuple[str, str], Support]
    moves: Mapping[str, tuple[str, int]]


def replace_words(path: str, words: Mapping[str, str]) -> str:
    """The path with whole alphanumeric parts replaced."""
    return "".join(words.get(part, part) for part in _PART.findall(path))


def pair_paths(upstream: Iterable[str], downstream: Iterable[str], renames: Iterable[tuple[str, str, int]]) -> Pairing:
    """Pair the files of two trees.

    ``renames`` are (old path, new path, similarity in percent) that git found between the trees by content. They vote on which words are
    replaced in paths; a word that wins most of the paths it occurs in is then used on all paths.
    """
    ours = set(downstream)
    theirs = sorted(set(upstream))
    renames = list(renames)
    votes: Counter[tuple[str, str]] = Counter()
    for old, new, _ in renames:
        one, other = _PART.findall(old), _PART.findall(new)
        if len(one) == len(other):
            votes.update({(a, b) for a, b in zip(one, other, strict=True) if a != b})
    chosen: dict[str, str] = {}
    words: dict[tuple[str, str], Support] = {}
    for (a, b), count in sorted(votes.items(), key=lambda item: (-item[1], item[0])):
        occurs = sum(1 for path in theirs if a in _PART.findall(path) and (path in ours or _renamed(path, renames)))
        if a not in chosen and a.isalpha() and b.isalnum() and count >= 2 and count >= 0.5 * occurs:
            chosen[a] = b
            words[a, b] = Support(count, occurs)
    pairs: dict[str, str] = {}
    for path in theirs:
        target = replace_words(path, chosen)
        if target in ours:
            pairs[path] = target
    moves: dict[str, tuple[str, int]] = {}
    taken = set(pairs.values())
    for old, new, similarity in sorted(renames, key=lambda rename: -rename[2]):
        alike = similarity >= SURE_MOVE or old.rpartition("/")[2] == new.rpartition("/")[2]
        if alike and old not in pairs and new not in taken:
            pairs[old] = new
            taken.add(new)
            moves[old] = new, similarity
    return Pairing(pairs, words, moves)


def _renamed(path: str, renames: list[tuple[str, str, int]]) -> bool:
    return any(old == path for old, _, _ in renames)
