"""Which downstream file is which upstream file: same path, moved with its content, or the same path with learned words replaced."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
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
    replaced in paths, as do paths that are equal but for one word; a word that wins most of the paths it occurs in is then used on all
    paths. Short files with many words of the vocabulary are too unlike for git, so content alone would not do.
    """
    ours = set(downstream)
    theirs = sorted(set(upstream))
    moved = {old: (new, similarity) for old, new, similarity in renames}
    chosen: dict[str, str] = {}
    words: dict[tuple[str, str], Support] = {}
    while True:
        lost = [path for path in theirs if replace_words(path, chosen) not in ours]
        free = ours - {replace_words(path, chosen) for path in theirs}
        found = _winners(_votes(lost, free, moved, chosen), lost, chosen)
        if not found:
            break
        for (a, b), support in found.items():
            chosen[a] = b
            words[a, b] = support
    pairs: dict[str, str] = {}
    for path in theirs:
        target = replace_words(path, chosen)
        if target in ours:
            pairs[path] = target
    moves: dict[str, tuple[str, int]] = {}
    taken = set(pairs.values())
    for old, (new, similarity) in sorted(moved.items(), key=lambda item: (-item[1][1], item[0])):
        alike = similarity >= SURE_MOVE or old.rpartition("/")[2] == new.rpartition("/")[2]
        if alike and old not in pairs and new not in taken:
            pairs[old] = new
            taken.add(new)
            moves[old] = new, similarity
    return Pairing(pairs, words, moves)


def _votes(
    lost: list[str], free: set[str], moved: Mapping[str, tuple[str, int]], chosen: Mapping[str, str]
) -> Counter[tuple[str, str]]:
    """How many unpaired upstream paths speak for each replacement of one word."""
    by_shape: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in free:
        for word, shape in _shapes(path):
            by_shape[shape].add((word, path))
    votes: Counter[tuple[str, str]] = Counter()
    for path in lost:
        known = replace_words(path, chosen)
        mine: set[tuple[str, str]] = set()
        for word, shape in _shapes(known):
            if len(by_shape.get(shape, ())) == 1:
                [(other, _)] = by_shape[shape]
                mine.add((word, other))
        if path in moved:
            one, other_parts = _PART.findall(known), _PART.findall(moved[path][0])
            if len(one) == len(other_parts):
                mine.update((a, b) for a, b in zip(one, other_parts, strict=True) if a != b)
        votes.update(mine)
    return votes


def _shapes(path: str) -> set[tuple[str, str]]:
    """Each word of a path with the path in which that word is a blank."""
    parts = _PART.findall(path)
    return {(word, "".join("\0" if part == word else part for part in parts)) for word in parts if word.isalpha()}


def _winners(
    votes: Counter[tuple[str, str]], lost: list[str], chosen: Mapping[str, str]
) -> dict[tuple[str, str], Support]:
    """The replacements that at least two unpaired paths, and half of those with the word, speak for."""
    occurs: Counter[str] = Counter()
    for path in lost:
        occurs.update(set(_PART.findall(path)))
    found: dict[tuple[str, str], Support] = {}
    for (a, b), count in sorted(votes.items(), key=lambda item: (-item[1], item[0])):
        fresh = a not in chosen and all(a != other for other, _ in found)
        if fresh and a.isalpha() and b.isalnum() and count >= 2 and count >= 0.5 * occurs[a] > 0:
            found[a, b] = Support(count, occurs[a])
    return found
